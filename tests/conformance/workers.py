"""Worker processes that run cases, so that a crash or a hang costs one case and nothing else.

thread of the parent ──Case──> process: attempt(case) ──Result──> thread
"""

import multiprocessing
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from queue import SimpleQueue
from typing import Any

from tests.conformance.cases import Case
from tests.conformance.results import Result, Verdict

CASE_SECONDS = 120.0
_MEMORY_BYTES = 12 << 30
_spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may crash


class _Worker:
    """A process, and another one after it has died or hung."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = ProcessPoolExecutor(1, _spawn, _limit_memory)

    def result_of(self, case: Case) -> Result:
        try:
            return self._process.submit(_attempt, case).result(CASE_SECONDS)
        except BrokenProcessPool:
            reason = "the worker process died"
        except TimeoutError:
            reason = f"no result after {CASE_SECONDS:.0f} s"
        self.end()
        self._start()
        return Result(case.name, case.kind, case.operator, Verdict.FAILED, reason)

    def end(self) -> None:
        for process in [*(self._process._processes or {}).values()]:
            process.kill()
        self._process.shutdown()


def run_cases(
    cases: Sequence[Case], processes: int, on_result: Callable[[Result], None]
) -> list[Result]:
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for _ in range(processes):
        idle.put(_Worker())

    def run(case: Case) -> Result:
        worker = idle.get()
        result = worker.result_of(case)
        idle.put(worker)
        on_result(result)
        return result

    with ThreadPoolExecutor(processes) as threads:
        results = list(threads.map(run, cases))
    for _ in range(processes):
        idle.get().end()
    return results


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _attempt(case: Case) -> Result:
    from tests.conformance.attempt import attempt

    return attempt(case, _executor())


@cache
def _executor() -> Any:
    from braid.engine.cpu.executor import CpuExecutor

    return CpuExecutor(threads=1)
