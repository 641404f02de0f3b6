"""Braid's plans beside the runtimes on one file: a process each, in turns, the order rotating."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contender_process import ContenderProcess
from benchmarks.environment import core_distance
from benchmarks.states import in_state
from benchmarks.zoo.contender import CONTENDERS, SEQUENTIAL, SERVES
from benchmarks.zoo.files import Specimen, relative_error
from braid.core.runtimes import ONNXRUNTIME, RUNTIMES, engine_of
from braid.engine.processes.environment import cpu_environment

OWN = (SERVES, SEQUENTIAL)
START_S = 1200.0
"""Seconds until a contender is warm; Braid searches first."""

TURN_S = 120.0
MIXED = ("regions", "branches", "rows")
"""Names, or first parts of them, of candidates in which engines run parts of a network."""

TOLERANCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}
"""Error against ONNX Runtime that an answer may have, relative to an output's largest element."""


@dataclass(frozen=True, slots=True)
class Course:
    """How contenders are timed."""

    folder: Path  # of outputs and logs
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
    compiled_s: float = 0.0

    @property
    def better_ms(self) -> float:
        """Time of the better runtime; infinite if none runs the file."""
        others = (ms for name, ms in self.ms.items() if name not in OWN)
        return min(others, default=math.inf)

    def speed(self, name: str) -> float:
        """How many times as fast as the better runtime a contender is; NaN: not known."""
        ms = self.ms.get(name, math.nan)
        return self.better_ms / ms if self.better_ms < math.inf else math.nan

    def candidate_speed(self, *, mixed: bool) -> float:
        """The same of Braid's best own plan, or best mixed one, in the comparison of all plans."""
        candidates = self.plan.get("candidates", {})
        runtimes = [ms for name, ms in candidates.items() if name in RUNTIMES]
        plans = [
            ms
            for name, ms in candidates.items()
            if name not in RUNTIMES and name.startswith(MIXED) == mixed
        ]
        return min(runtimes) / min(plans) if runtimes and plans else math.nan

    @property
    def engines(self) -> list[str]:
        """Engines that could have served the network as a whole."""
        candidates = self.plan.get("candidates", {})
        return sorted({engine_of(name) for name in candidates if name in RUNTIMES})


def measure(specimen: Specimen, file: Path, rows: int, course: Course) -> Timed:
    """Compile a file, and let Braid and the runtimes run it in turns."""
    timed = Timed(rows)
    with _started(specimen, file, course, timed) as contenders:
        counts, turns_ms = {}, dict[str, list[float]]()
        for name, process in contenders.items():
            (first_ms,) = json.loads(process.ask("1", TURN_S))
            counts[name] = max(3, min(50, round(course.turn_s * 1e3 / first_ms)))

        def hold(number: int) -> dict[str, float]:
            took_ms, names = {}, list(contenders)
            first = number % max(1, len(names))
            for name in [*names[first:], *names[:first]]:
                time.sleep(0.02)
                took_ms[name] = median(json.loads(contenders[name].ask(str(counts[name]), TURN_S)))
            return took_ms

        for number in range(course.rounds):
            for name, took_ms in in_state(course.state, partial(hold, number)).items():
                turns_ms.setdefault(name, []).append(took_ms)
    timed.ms = {name: median(turns) for name, turns in turns_ms.items()}
    if timed.plan.get("planner") == SEQUENTIAL:
        timed.ms[SEQUENTIAL] = timed.ms[SERVES]
    timed.cores = str(core_distance()["cores"])
    return timed


@contextmanager
def _started(
    specimen: Specimen, file: Path, course: Course, timed: Timed
) -> Iterator[dict[str, ContenderProcess]]:
    """Start the contenders one after the other, and compare their outputs."""
    outputs = {name: course.folder / f"{specimen.key}-{name}.npz" for name in CONTENDERS}
    with ExitStack() as stack:
        ready = {}
        for name in CONTENDERS:
            if name == SEQUENTIAL and (SERVES in timed.refused or _is_same(timed.plan)):
                continue
            command = [sys.executable, "-m", "benchmarks.zoo.contender", name, str(file)]
            command += ["--rows", str(timed.rows), "--type", specimen.type]
            command += ["--threads", str(course.threads), "--store", str(course.store)]
            command += ["--planner", course.planner, "--outputs", str(outputs[name])]
            log = course.folder / f"{specimen.key}-{name}.log"
            process = ContenderProcess(name, command, log, _environment(name))
            began = time.monotonic()
            stack.callback(process.end)
            try:
                facts = json.loads(process.line(START_S))
            except RuntimeError as error:
                timed.refused[name] = str(error)[-300:]
                continue
            ready[name] = process
            if name == SERVES:
                timed.plan, timed.compiled_s = facts, round(time.monotonic() - began, 1)
        _compare(timed, {name: outputs[name] for name in ready})
        yield ready


def _is_same(plan: Mapping[str, Any]) -> bool:
    """Whether the sequential plan, or no plan, is what serves."""
    return plan.get("planner") in (SEQUENTIAL, "")


def _environment(name: str) -> Mapping[str, str]:
    return cpu_environment() if name in OWN else os.environ


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
