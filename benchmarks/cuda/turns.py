"""Contenders on one GPU: started one after the other, then measured in turns, never two at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contender_process import ContenderProcess
from benchmarks.cuda.agenda import BRAID, PATIENCE_S, Budget
from benchmarks.cuda.record import CudaCase, contender_name
from braid.engine.processes.environment import cuda_environment

ANSWER_S = 60.0
MOST_RUNS = 30
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Turn:
    """What one process runs when it is its turn."""

    process: ContenderProcess
    run: str  # as the process calls it
    contender: str  # as results call it


@dataclass(frozen=True, slots=True)
class Setting:
    """How contenders of one case are started and measured."""

    budget: Budget
    commands: Mapping[str, Sequence[str]]  # contender -> command, but for its patience
    logs: Path
    turn_s: float  # of runs by each clock


def measure(case: CudaCase, setting: Setting) -> None:
    """Fill in the samples of one case; contenders that fail are noted and left out.

    Those that the end of the budget found unready are left out only: nothing is wrong with them.
    """
    with _started(case, setting) as turns:
        if not turns:
            return
        counts = {turn.contender: _count(case, turn, setting.turn_s) for turn in turns}
        for round_ in range(ROUNDS):
            first = round_ % len(turns)
            for turn in [*turns[first:], *turns[:first]]:
                if counts[turn.contender] and (round_ == 0 or setting.budget.left_s):
                    _take(case, turn, counts)


def _count(case: CudaCase, turn: Turn, turn_s: float) -> int:
    try:
        first = _ask(turn, 2)
    except RuntimeError as error:
        case.failed[turn.contender] = str(error)
        return 0
    slowest = max(median(first["gpu_ms"]), median(first["total_ms"]))
    return max(2, min(MOST_RUNS, round(turn_s * 1e3 / max(slowest, 1e-3))))


def _take(case: CudaCase, turn: Turn, counts: dict[str, int]) -> None:
    try:
        times = _ask(turn, counts[turn.contender])
    except RuntimeError as error:
        case.failed[turn.contender] = str(error)
        counts[turn.contender] = 0
        return
    case.gpu_ms.setdefault(turn.contender, []).extend(times["gpu_ms"])
    case.total_ms.setdefault(turn.contender, []).extend(times["total_ms"])


def _ask(turn: Turn, count: int) -> dict[str, list[float]]:
    asked = json.dumps({"run": turn.run, "count": count})
    answer: dict[str, Any] = json.loads(turn.process.ask(asked, ANSWER_S))
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


@contextmanager
def _started(case: CudaCase, setting: Setting) -> Iterator[list[Turn]]:
    with ExitStack() as stack:
        processes = []
        for name, command in setting.commands.items():  # libraries load side by side
            patience_s = setting.budget.at_most(PATIENCE_S[name])
            timed = [*command, "--patience", f"{patience_s:.0f}"]
            log = setting.logs / f"{case.network}-{case.batch}-{name}.log"
            process = ContenderProcess(name, timed, log, contender_environment())
            stack.callback(process.end)
            processes.append(process)
        turns: list[Turn] = []
        for process in processes:
            try:
                turns += _ready(case, process, setting.budget.at_most(PATIENCE_S[process.name]))
            except (RuntimeError, ValueError) as error:
                if setting.budget.left_s:
                    case.failed[process.name] = str(error)
                    print(f"  {process.name} does not run: {error}", file=sys.stderr)
                process.end()
        yield turns


def _ready(case: CudaCase, process: ContenderProcess, patience_s: float) -> list[Turn]:
    """What a process offers, once it is told to begin and warm."""
    if process.ask("go", patience_s) != "ready":
        raise RuntimeError("it printed something else than that it is ready")
    offer: dict[str, Any] = json.loads(process.line(ANSWER_S))
    own = process.name == BRAID
    turns = [Turn(process, run, contender_name(run) if own else run) for run in offer["runs"]]
    for turn in turns:
        case.notes[turn.contender] = offer["notes"].get(turn.run)
        case.failed.pop(turn.contender, None)
    return turns


def contender_environment() -> dict[str, str]:
    """The same for all: one GPU, 32 connections to it."""
    return cuda_environment(0, os.environ)
