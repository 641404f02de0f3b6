"""Activation memory: nothing overlaps that must not, and little is wasted."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.core.plan import Launch, StreamPlan
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.memory import Lifetime, plan_memory
from braid.engine.cpu.segments import find_runner
from braid.engine.passes.specialise import interpret
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.passes.drawing import Drawing


@st.composite
def chains(draw: st.DrawFn) -> dict[int, Lifetime]:
    """Values of a run on one lane: made at a step, read until a later one."""
    found = {}
    for value in range(draw(st.integers(1, 30))):
        first = draw(st.integers(0, 20))
        last = first + draw(st.integers(0, 6))
        touched = sum(1 << step for step in range(first, last + 1))
        found[value] = Lifetime(draw(st.integers(1, 5000)), touched, (1 << first) - 1)
    return found


@given(chains())
def test_values_that_meet_never_overlap(lifetimes: dict[int, Lifetime]) -> None:
    plan = plan_memory(lifetimes)

    for left, right in combinations(lifetimes, 2):
        if lifetimes[left].touched & lifetimes[right].touched:
            first, second = sorted((left, right), key=lambda value: plan.offsets[value])
            end = plan.offsets[first] + lifetimes[first].size_bytes
            assert end <= plan.offsets[second]
    for value, life in lifetimes.items():
        assert plan.offsets[value] % 64 == 0
        assert plan.offsets[value] + life.size_bytes <= plan.peak_bytes


def test_a_chain_takes_two_buffers() -> None:
    lifetimes = {step: Lifetime(6400, 0b11 << step, (1 << step) - 1) for step in range(50)}

    assert plan_memory(lifetimes).peak_bytes == 2 * 6400


def test_values_of_lanes_side_by_side_do_not_share() -> None:
    # Steps 0 and 1 on one lane, 2 and 3 on another: none is certain to come before the other lane.
    lifetimes = {0: Lifetime(64, 0b0011, 0), 1: Lifetime(64, 0b1100, 0)}

    assert plan_memory(lifetimes).peak_bytes == 128


executor = executor_of(threads=2)


def test_what_a_view_shows_stays_until_the_view_is_read(executor: CpuExecutor) -> None:
    draw = Drawing(x=(2, 4, 6, 6))
    view = draw.op("braid.reshape", draw.op("aten.relu", "x"), shape=[2, 4, 36])
    other = draw.op("aten.relu", draw.op("aten.tanh", draw.op("aten.sigmoid", "x")))
    graph, constants = draw.static(other, draw.op("aten.relu", view), view)
    program = on_kernels(graph, constants, executor.threads)
    layout = in_lanes(program, executor.threads)
    x = torch.randn(2, 4, 6, 6)

    first = run(executor, program, layout, {"x": x})
    run(executor, program, layout, {"x": torch.randn(2, 4, 6, 6)})

    for name, expected in interpret(graph, constants, {"x": x}).items():
        torch.testing.assert_close(first[name], expected)


@pytest.mark.skipif(find_runner() is None, reason="needs the part in C")
def test_a_plan_on_several_lanes_takes_little_more_memory(executor: CpuExecutor) -> None:
    width, depth = 2, 12
    draw, last = Drawing(x=(1, 8, 32, 32)), []
    for _ in range(width):
        y = "x"
        for _ in range(depth):
            y = draw.op("aten.relu", y)
        last.append(y)
    graph, _ = draw.static(*last)
    program = on_kernels(graph, {}, executor.threads)
    launches = tuple(Launch(unit, unit // depth) for unit in range(len(graph)))
    side_by_side = in_lanes(program, executor.threads, StreamPlan(launches, width))
    alone = in_lanes(program, executor.threads)

    for layout in (alone, side_by_side):
        run(executor, program, layout, {"x": torch.randn(1, 8, 32, 32)})

    assert 0 < side_by_side.arena_bytes <= width * alone.arena_bytes
