"""Release points and events on small plans drawn by hand."""

from collections.abc import Sequence

import torch

from braid.core.graph import Operator, OpGraph
from braid.core.plan import Launch, StreamPlan
from braid.engine.cuda.graphs.calls import plan_calls, stage_calls
from braid.engine.cuda.graphs.commands import (
    LaunchStep,
    RecordStep,
    Step,
    WaitStep,
    lower,
    order_calls,
)
from braid.engine.cuda.graphs.release import SlotAliases, release_points
from braid.engine.program.program import Program
from tests.engine.cuda.graphs import SQUARE, bound


def chainable(*reads: str) -> Program:
    """Unit i adds up the values named in ``reads[i]``: "x", or an earlier unit by its number."""
    units = [Operator(str(i), "aten.add", tuple(names), (str(i),)) for i, names in enumerate(reads)]
    specs = {unit.name: SQUARE for unit in units}
    outputs = {"y": units[-1].name}
    return bound(OpGraph("drawn", {"x": SQUARE}, outputs, {}, tuple(units), specs), {})


def released(program: Program, plan: StreamPlan, aliases: SlotAliases) -> dict[int, set[str]]:
    calls = plan_calls(program, plan)
    points = release_points(calls, order_calls(calls), aliases, program.kept())
    name = {slot: name for name, slot in program.slots.items()}
    return {call: {name[slot] for slot in slots} for call, slots in points.items()}


#   s0: 0 ──> 1 ────> 3 ──> 4        1 reads 0 on its own stream; 2 reads it on the other
#   s1:  └──────> 2 ────────┘        3 does not wait for 2, 4 does
FORK = chainable("xx", "0x", "0x", "1x", "32")


def fork_plan(barriers: Sequence[int] = ()) -> StreamPlan:
    launches = Launch(0, 0), Launch(1, 0), Launch(2, 1, (0,)), Launch(3, 0), Launch(4, 0, (2,))
    return StreamPlan(launches, 2, tuple(barriers))


def test_without_barriers_a_tensor_waits_for_the_launch_that_comes_after_all_readers() -> None:
    points = released(FORK, fork_plan(), SlotAliases())

    assert points == {4: {"0", "1"}}, "3 may run while 2 still reads 0"


def test_a_barrier_orders_everything_so_a_tensor_goes_right_after_it() -> None:
    launches = Launch(0, 0), Launch(1, 0), Launch(2, 1, (0,)), Launch(3, 0), Launch(4, 0)
    points = released(FORK, StreamPlan(launches, 2, (3,)), SlotAliases())

    assert points[3] == {"0"}


def test_a_tensor_outlives_the_views_of_it() -> None:
    aliases = SlotAliases()
    memory = torch.zeros(6, 6)
    slots = FORK.slots
    aliases.learn([(slots["0"], memory)], [(slots["2"], memory.T)])  # 2 shows 0, and 4 reads 2

    points = released(FORK, fork_plan(), aliases)

    assert points == {4: {"1"}}


def test_results_that_share_memory_go_together() -> None:
    aliases = SlotAliases()
    memory = torch.zeros(6, 6)

    aliases.learn([], [(1, memory[:3]), (2, memory[3:]), (3, torch.zeros(6))])

    assert aliases.root(2) == aliases.root(1) == 1
    assert aliases.root(3) == 3


def steps_of(program: Program, plan: StreamPlan) -> list[Step]:
    calls = plan_calls(program, plan)
    return list(lower(calls, order_calls(calls), {}))


def test_waits_that_earlier_waits_imply_are_left_out() -> None:
    #   s0: 0 ──> 1      s1: 2 waits for 0 and for 1, 3 for 0
    program = chainable("xx", "0x", "01", "20")
    launches = Launch(0, 0), Launch(1, 0), Launch(2, 1, (0, 1)), Launch(3, 1, (0,))

    steps = steps_of(program, StreamPlan(launches, 2))

    waits = [step for step in steps if isinstance(step, WaitStep)]
    assert waits == [WaitStep(4, 1), WaitStep(1, 0)], "the fork, then one wait for both"


def test_side_streams_fork_from_the_origin_and_are_joined_to_it() -> None:
    program = chainable("xx", "xx", "xx")
    plan = StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 2)), 3)

    steps = steps_of(program, plan)

    root = 3
    assert steps[0] == RecordStep(root, 0)
    first = {s.stream: s for s in reversed(steps[1:]) if isinstance(s, WaitStep | LaunchStep)}
    assert all(first[stream] == WaitStep(root, stream) for stream in (1, 2))
    joined = {s.event for s in steps[-2:] if isinstance(s, WaitStep) and s.stream == 0}
    assert len(joined) == 2


def test_one_stream_needs_no_event() -> None:
    steps = steps_of(FORK, StreamPlan(tuple(Launch(i, 0) for i in range(5)), 1))

    assert [type(step) for step in steps] == [LaunchStep] * 5


def test_the_stream_of_the_longest_chain_becomes_the_origin() -> None:
    program = chainable("xx", "xx", "1x", "2x", "03")
    launches = Launch(0, 0), Launch(1, 1), Launch(2, 1), Launch(3, 1), Launch(4, 0, (3,))

    calls = plan_calls(program, StreamPlan(launches, 2))

    assert [call.stream for call in calls] == [1, 0, 0, 0, 1]


def test_groups_of_a_stage_do_not_wait_for_each_other() -> None:
    calls = stage_calls(FORK, [[1], [2]], "concurrent")

    assert order_calls(calls).before == (0, 0)
