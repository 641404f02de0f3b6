"""The planner as a real child process, with a fake device."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil
import pytest

from braid.compiler.planner import PlannerInterrupted, PlannerProcess, PlanningFailed
from braid.compiler.planner_messages import StageQuery
from braid.core.errors import BraidError
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import DeviceFacts, StageOverheads, UnitProfile
from braid.core.plan import sequential_plan, verify_plan
from braid.core.tensor import TensorType
from braid.engine.processes.fork_server import ForkServer
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan

SPEC = TensorType("FP32", (1, 8))


def graph(edges: Mapping[str, Sequence[str]], name: str = "g") -> OpGraph:
    """One relu-like unit a name, reading from the named ones ("x" is the input)."""
    operators = tuple(
        Operator(unit, "aten.cat", tuple(reads), (unit,), {"dim": number})
        for number, (unit, reads) in enumerate(edges.items())
    )
    last = list(edges)[-1]
    return OpGraph(name, {"x": SPEC}, {"y": last}, {}, operators, dict.fromkeys(edges, SPEC))


#   a ──> b ──> d
#    └──> c ──┘
DIAMOND = graph({"a": "x", "b": "a", "c": "a", "d": "bc"})
COST = OperatorLatencies((1.0, 5.0, 4.0, 1.0), group_overhead_us=0.1)


def facts(units: int, merges: Sequence[tuple[int, ...]] = ()) -> DeviceFacts:
    """Two threads, on which everything scales; a stage costs nothing by itself."""
    return DeviceFacts(
        StageOverheads(0.0, 0.1), (UnitProfile(8.0, True),) * units, tuple(merges), 2
    )


FACTS = facts(4)
IOS = PlannerSettings("ios")


class FakeDevice:
    """Answers from a table and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[StageQuery]] = []

    async def measure(self, queries: Sequence[StageQuery]) -> list[float]:
        self.asked.append(list(queries))
        return [COST.stage_latency_us(query.stage) for query in queries]


def planner(
    module: str = "braid.compiler.planner_process", seconds: float = 30.0
) -> PlannerProcess:
    return PlannerProcess(memory_bytes=4 << 30, search_seconds=seconds, module=module)


def children() -> list[psutil.Process]:
    """Planner processes of this process; other tests may keep a server running."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
        and any("planner_process" in part for part in child.cmdline())
    ]


async def test_a_plan_from_the_process_is_the_plan_made_here() -> None:
    device = FakeDevice()

    (found,) = await planner()(DIAMOND, IOS, FACTS, device.measure)

    here = plan(DIAMOND, COST, IOS)
    assert [stage.groups for stage in found.stages] == [((0,),), ((1,), (2,)), ((3,),)]
    assert (found.plan, found.predicted_us) == (here.plan, here.predicted_us)
    assert (found.planner, found.gap) == ("ios(r=3,s=8)", 0.0)
    verify_plan(found.plan, DIAMOND.predecessors())
    assert not children()


async def test_cancelling_ends_the_process() -> None:
    asked = asyncio.Event()

    async def never(_: Sequence[StageQuery]) -> list[float]:
        asked.set()
        await asyncio.sleep(3600)
        return []

    task = asyncio.create_task(planner()(DIAMOND, IOS, FACTS, never))
    await asked.wait()
    assert len(children()) == 1

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert not children()


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (signal.SIGKILL, PlannerInterrupted, r"was killed \(SIGKILL\)"),
        (signal.SIGTERM, PlannerInterrupted, r"was killed \(SIGTERM\)"),
        (signal.SIGSEGV, PlanningFailed, "exit code -11"),
    ],
)
async def test_a_process_that_was_killed_may_be_tried_again_one_that_crashed_not(
    number: signal.Signals, error: type[BraidError], message: str
) -> None:
    async def end(_: Sequence[StageQuery]) -> list[float]:
        for child in children():
            child.send_signal(number)
        return [1.0]

    with pytest.raises(error, match=message):
        await planner()(DIAMOND, IOS, FACTS, end)


async def test_a_process_that_stands_still_may_be_tried_again() -> None:
    async def stop(queries: Sequence[StageQuery]) -> list[float]:
        for child in children():
            child.suspend()
        return [1.0] * len(queries)

    with pytest.raises(PlannerInterrupted, match="has not run for 2 s"):
        await planner(seconds=2.0)(DIAMOND, IOS, FACTS, stop)

    assert not children()


async def test_a_process_that_cannot_be_started_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(ForkServer, "ask", refuse)

    with pytest.raises(PlannerInterrupted, match="Resource temporarily unavailable"):
        await planner()(DIAMOND, IOS, FACTS, FakeDevice().measure)


async def test_a_bug_in_the_process_is_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    async def too_few(_: Sequence[StageQuery]) -> list[float]:
        return []

    with pytest.raises(PlanningFailed, match=r"crashed .exit code 1.*server's log"):
        await planner()(DIAMOND, IOS, FACTS, too_few)

    assert "ValueError" in str(vars(caplog.records[-1])["stderr_tail"])


async def test_a_graph_that_planners_cannot_read_is_a_failed_plan() -> None:
    unspecialised = OpGraph("g", {"x": SPEC}, {"y": "a"}, {}, DIAMOND.operators[:1])

    with pytest.raises(PlanningFailed, match="specialise the graph"):
        await planner()(unspecialised, IOS, FACTS, FakeDevice().measure)


async def test_a_search_without_end_is_ended() -> None:
    endless = planner("tests.compiler.endless_planner", seconds=0.5)

    async def search() -> object:
        while True:
            with suppress(PlannerInterrupted):  # it did not run for half a second
                return await endless(DIAMOND, IOS, FACTS, FakeDevice().measure)

    with pytest.raises(PlanningFailed, match=r"searched for more than 0.5 s"):
        await search()

    assert not children()


async def test_out_of_memory_says_so() -> None:
    leaves = [f"u{n}" for n in range(22)]
    wide = graph({**dict.fromkeys(leaves, "x"), "last": leaves})
    options = PlannerSettings("ios", max_group_ops=None, max_groups=None, max_block_ops=None)

    with pytest.raises(PlanningFailed, match=r"memory|too big|search takes at most"):
        await PlannerProcess(64 << 20, 30.0)(wide, options, FACTS, FakeDevice().measure)


async def test_a_server_that_is_gone_ends_the_process() -> None:
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "braid.compiler.planner_process"),
        "--memory-bytes=4000000000",
        stdin=reading,
    )
    os.close(reading)
    os.close(writing)

    assert await asyncio.wait_for(process.wait(), 120) == 3


async def test_lazy_search_measures_units_on_all_and_on_one_thread_first() -> None:
    device = FakeDevice()

    (found,) = await planner()(DIAMOND, PlannerSettings("lazy-ios"), FACTS, device.measure)

    assert [query.ask for query in device.asked[0]] == ["latency"] * 4 + ["work"] * 4
    assert found.gap is not None


async def test_work_bounds_spare_measurements_where_nothing_can_overlap() -> None:
    """Units that scale over all threads fill the device: beside each other they gain nothing."""

    class Filled(FakeDevice):
        async def measure(self, queries: Sequence[StageQuery]) -> list[float]:
            self.asked.append(list(queries))
            factor = {"latency": 1.0, "work": 2.0}
            return [sum(100.0 * factor[q.ask] for _ in q.stage.operators) for q in queries]

    device = Filled()

    (found,) = await planner()(DIAMOND, PlannerSettings("lazy-ios"), FACTS, device.measure)

    assert found.predicted_us == 400.0
    assert found.gap == 0.0
    stages = {q.stage for queries in device.asked for q in queries if len(q.stage.groups) > 1}
    assert not stages


async def test_the_portfolio_answers_with_all_different_plans_and_asks_nothing_twice() -> None:
    device = FakeDevice()

    found = await planner()(DIAMOND, PlannerSettings("portfolio"), FACTS, device.measure)

    assert found[0].planner == "sequential"
    assert found[0].plan == sequential_plan(4)
    assert len({model.plan for model in found}) == len(found) > 1
    names = [name for model in found for name in (model.planner, *model.also)]
    assert {"greedy", "lios", "lazy-ios(r=3,s=8)"} <= set(names)
    asked = [(q.signature, q.ask) for queries in device.asked for q in queries]
    assert len(asked) == len(set(asked))
