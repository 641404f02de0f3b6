"""Braid's plans beside the runtimes on one file: a process each, in turns, the order rotating."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contender_process import ContenderProcess
from benchmarks.environment import core_distance
from benchmarks.states import in_state
from benchmarks.zoo.contender import OWN, PLAIN, SEQUENTIAL, SERVES, Load, line_of
from benchmarks.zoo.feeds import FP32, relative_error
from benchmarks.zoo.files import Specimen
from braid.core.runtimes import GONE, ONNXRUNTIME, OPENVINO, RUNTIMES
from braid.engine.processes.environment import cpu_environment

CONTENDERS = (SERVES, SEQUENTIAL, ONNXRUNTIME, OPENVINO)
BRIEFLY = (PLAIN, ONNXRUNTIME, OPENVINO)
LOAD_S = 1200.0
"""Seconds until a contender is warm; Braid searches first."""

TURN_S = 120.0
MIXED = ("regions", "branches", "rows")
"""Names, or first parts of them, of candidates in which engines run parts of a network."""

TOLERANCES: Mapping[str, float] = {FP32: 1e-3, "fp16": 2e-2, "bf16": 1e-1}
"""Error against ONNX Runtime that an answer may have, relative to an output's largest element."""


@dataclass(frozen=True, slots=True)
class Course:
    """How contenders are timed."""

    contenders: Sequence[str]
    store: Path  # of Braid's schedules, kept between networks
    planner: str
    threads: int
    rounds: int
    turn_s: float
    state: str = ""


@dataclass(slots=True)
class Timed:
    """One file at one batch size."""

    rows: int
    ms: dict[str, float] = field(default_factory=dict)  # contender -> median of its turns' medians
    errors: dict[str, float] = field(default_factory=dict)  # of outputs, beside ONNX Runtime's
    refused: dict[str, str] = field(default_factory=dict)  # contender -> why it does not run
    plan: dict[str, Any] = field(default_factory=dict)  # PlanFacts
    cores: str = ""  # how far they were from each other at the end
    loaded_s: dict[str, float] = field(default_factory=dict)  # Braid searches meanwhile

    @property
    def better_ms(self) -> float:
        """Time of the better runtime; infinite if none runs the file."""
        others = (ms for name, ms in self.ms.items() if name not in OWN)
        return min(others, default=math.inf)

    def speed(self, *names: str) -> float:
        """How many times as fast as the better runtime one of some contenders is; NaN: unknown."""
        ms = next((self.ms[name] for name in names if name in self.ms), math.nan)
        return self.better_ms / ms if self.better_ms < math.inf else math.nan

    def candidate_speed(self, *, mixed: bool) -> float:
        """The same of Braid's best own plan, or best mixed one, in the comparison of all plans."""
        candidates = self.plan.get("candidates", {})
        runtimes = [ms for name, ms in candidates.items() if name in RUNTIMES]
        plans = [
            ms
            for name, ms in candidates.items()
            if name not in {*RUNTIMES, *GONE} and name.startswith(MIXED) == mixed
        ]
        return min(runtimes) / min(plans) if runtimes and plans else math.nan

    @property
    def engines(self) -> list[str]:
        """Engines that could have served the network as a whole."""
        candidates = self.plan.get("candidates", {})
        return sorted({*RUNTIMES} & {name.removesuffix("-1") for name in candidates})


class Contenders:
    """Processes of contenders, which load one file after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._up: dict[str, ContenderProcess] = {}

    def ask(self, name: str, line: str, timeout_s: float) -> Any:
        """Ask a contender, which is started if it is not up; one that fails is ended.

        Raises:
            RuntimeError: it ended, or took longer.
        """
        if name not in self._up:
            command = [sys.executable, "-m", "benchmarks.zoo.contender", name]
            environment = cpu_environment() if name in OWN else os.environ
            log = self._folder / f"{name}.log"
            self._up[name] = ContenderProcess(name, command, log, environment)
        try:
            return json.loads(self._up[name].ask(line, timeout_s))
        except RuntimeError:
            self._up.pop(name).end()
            raise

    def end(self) -> None:
        for process in self._up.values():
            process.end()
        self._up.clear()


@contextmanager
def contenders() -> Iterator[Contenders]:
    """Keep processes for one network after the other, and end them."""
    with tempfile.TemporaryDirectory(prefix="braid-zoo-") as folder:
        processes = Contenders(Path(folder))
        try:
            yield processes
        finally:
            processes.end()


def measure(
    specimen: Specimen, file: Path, artefact: Path, rows: int, course: Course, up: Contenders
) -> Timed:
    """Compile a file, and let Braid and the runtimes run it in turns."""
    timed, turns_ms = Timed(rows), dict[str, list[float]]()
    with tempfile.TemporaryDirectory(prefix="braid-zoo-") as folder:
        load = Load(
            *(str(file), rows, "", specimen.type, course.threads),
            *(str(course.store), course.planner, str(artefact)),
        )
        outputs = _load(load, Path(folder), course.contenders, timed, up)
        _compare(timed, outputs)
    counts = {}
    for name in outputs:
        (first_ms,) = up.ask(name, "1", TURN_S)
        counts[name] = max(3, min(50, round(course.turn_s * 1e3 / first_ms)))

    def hold(number: int) -> dict[str, float]:
        names, took_ms = list(counts), {}
        first = number % max(1, len(names))
        for name in [*names[first:], *names[:first]]:
            time.sleep(0.02)
            took_ms[name] = median(up.ask(name, str(counts[name]), TURN_S))
        return took_ms

    for number in range(course.rounds):
        for name, took_ms in in_state(course.state, partial(hold, number)).items():
            turns_ms.setdefault(name, []).append(took_ms)
    timed.ms = {name: median(turns) for name, turns in turns_ms.items()}
    if timed.plan.get("planner") == SEQUENTIAL:
        timed.ms[SEQUENTIAL] = timed.ms[SERVES]
    timed.cores = str(core_distance()["cores"])
    return timed


def _load(
    load: Load, folder: Path, names: Sequence[str], timed: Timed, up: Contenders
) -> dict[str, Path]:
    """Let contenders load a file one after the other; returns the outputs of those that could."""
    outputs = {}
    for name in names:
        if name == SEQUENTIAL and (SERVES in timed.refused or _is_same(timed.plan)):
            continue
        file, began = folder / f"{name}.npz", time.monotonic()
        try:
            facts = up.ask(name, line_of(replace(load, outputs=str(file))), LOAD_S)
        except RuntimeError as error:
            facts = {"refused": f"the process ended: {error}"[-300:]}
        timed.loaded_s[name] = round(time.monotonic() - began, 1)
        if isinstance(why := facts.get("refused"), str):
            timed.refused[name] = why
            continue
        outputs[name] = file
        timed.plan = timed.plan or facts
    return outputs


def _is_same(plan: Mapping[str, Any]) -> bool:
    """Whether the sequential plan, or no plan, is what serves."""
    return plan.get("planner") in (SEQUENTIAL, "")


def _compare(timed: Timed, outputs: Mapping[str, Path]) -> None:
    """Note how far outputs are from ONNX Runtime's, or from the first one's if it does not run."""
    if not outputs:
        return
    reference = ONNXRUNTIME if ONNXRUNTIME in outputs else next(iter(outputs))
    with np.load(outputs[reference]) as right:
        for name, file in outputs.items():
            if name != reference:
                with np.load(file) as answers:
                    timed.errors[name] = max(_errors(answers, right), default=0.0)


def _errors(answers: Any, right: Any) -> Sequence[float]:
    return [
        relative_error(answers[name], right[name]) if name in answers.files else math.inf
        for name in right.files
    ]
