"""Worker processes that run cases, so that a crash or a hang costs one case and nothing else.

parent ──Case──> worker: attempt(case) ──Result──> parent
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from time import monotonic

from tests.conformance.cases import Case
from tests.conformance.results import Result, Verdict

CASE_SECONDS = 120.0
_MEMORY_BYTES = 12 << 30
_spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may crash


class _Worker:
    """A process, its pipe, and the case it is at."""

    def __init__(self) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.index = -1
        self.started = 0.0

    def begin(self, index: int, case: Case) -> None:
        self.index, self.started = index, monotonic()
        self.pipe.send(case)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_cases(
    cases: Sequence[Case], processes: int, on_result: Callable[[Result], None]
) -> list[Result]:
    results: dict[int, Result] = {}
    todo = list(reversed(range(len(cases))))
    workers: list[_Worker] = []
    while len(results) < len(cases):
        while todo and len(workers) < processes:
            worker = _Worker()
            index = todo.pop()
            worker.begin(index, cases[index])
            workers.append(worker)
        ready = wait([worker.pipe for worker in workers], timeout=1.0)
        for worker in list(workers):
            result = _heard(worker, cases[worker.index], worker.pipe in ready)
            if result is None:
                continue
            results[worker.index] = result
            on_result(result)
            alive = worker.process.is_alive() and result.reason not in (_DIED, _HUNG)
            if alive and todo:
                index = todo.pop()
                worker.begin(index, cases[index])
            else:
                worker.end()
                workers.remove(worker)
    return [results[index] for index in range(len(cases))]


_DIED, _HUNG = "the worker process died", f"no result after {CASE_SECONDS:.0f} s"


def _heard(worker: _Worker, case: Case, ready: bool) -> Result | None:
    """What is known of a worker's case now."""
    reason = ""
    if ready:
        try:
            result: Result = worker.pipe.recv()
        except EOFError:
            reason = _DIED
        else:
            return result
    elif monotonic() - worker.started > CASE_SECONDS:
        reason = _HUNG
    if not reason:
        return None
    return Result(case.name, case.kind, case.operator, Verdict.FAILED, reason)


def _serve(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from braid.engine.cpu.executor import CpuExecutor
    from tests.conformance.attempt import attempt

    executor = CpuExecutor(threads=1)
    while True:
        pipe.send(attempt(pipe.recv(), executor))
