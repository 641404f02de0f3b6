"""The first run of an executable, which bounds the others, is timed without requests in between."""

import mmap
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, cast

from braid.core.program import PlanToRun, ProgramKey
from braid.engine.link.messages import ModelMemory, PrepareExecutable
from braid.engine.link.shared_memory import slot_layout
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.worker.requests import RequestHandlers


class SlowRequests(YieldToRequests):
    """Requests that take a while, by the clock."""

    took_ns = 0

    def __call__(self) -> bool:
        start = perf_counter_ns()
        while perf_counter_ns() - start < 20_000_000:
            pass
        self.took_ns = perf_counter_ns() - start
        return True


def test_requests_in_the_middle_of_the_first_run_do_not_raise_the_bound_of_others() -> None:
    def run(_: object, pause: YieldToRequests) -> dict[str, Any]:
        pause()
        return {}

    program = SimpleNamespace(graph=SimpleNamespace(inputs={}, outputs={}, operators=()))
    ready = SimpleNamespace(
        program=program,
        session=None,
        prepared=SimpleNamespace(run=run),
        place=None,
        needs_finite=False,
        layout=slot_layout({}, {}),
    )
    models: Any = SimpleNamespace(
        program=lambda *_: program,
        content=lambda _: {},
        places=lambda _: (None,),
        executable_of=lambda *_: ready,
        prepare=lambda *_: None,
        memory=lambda *_: ModelMemory(),
        size_bytes=lambda _: 0,
    )
    asked = PrepareExecutable(1, PlanToRun(ProgramKey("d", ())))
    requests, nothing = SlowRequests(), cast(Any, None)
    with mmap.mmap(-1, mmap.PAGESIZE) as arena:
        calls = RequestHandlers(nothing, arena, models, nothing, requests)
        start = perf_counter_ns()
        answer = calls.prepare(asked)
        elapsed_ns = perf_counter_ns() - start

    assert 0 < answer.run_s * 1e9 <= elapsed_ns - requests.took_ns
