"""Activation memory: nothing overlaps that must not, and little is wasted."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d
from torch.utils._python_dispatch import TorchDispatchMode

from braid.core.graph import OpGraph
from braid.core.plan import Launch, StreamPlan
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.memory import Lifetime, plan_memory
from braid.engine.cpu.segments import find_runner
from braid.engine.passes.specialise import interpret
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.cpu.test_lanes import random_plan
from tests.engine.passes.drawing import CONV, Drawing


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


WRITTEN = ("conv", "flat", "dense", "squashed", "soft", "narrow")
"""Outputs that a sequential plan writes in place, outside the interpreter."""


def graph() -> tuple[OpGraph, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    draw = Drawing(x=(2, 8, 6, 6))
    draw.weights |= {
        "conv_weight": torch.randn(4, 8, 3, 3, generator=generator) * 0.1,
        "narrow_weight": torch.randn(1, 8, 3, 3, generator=generator) * 0.1,
        "linear_weight": torch.randn(10, 144, generator=generator) * 0.1,
    }
    conv = draw.op("aten.convolution", "x", "conv_weight", **CONV, epilogue=[["aten.relu"]])
    narrow = draw.op("aten.convolution", "x", "narrow_weight", **CONV)
    flat = draw.op("braid.reshape", conv, shape=[2, 144])
    dense = draw.op("aten.linear", flat, "linear_weight")
    squashed, soft = draw.op("aten.sigmoid", dense), draw.op("aten.softmax", dense, dim=1)
    twice = {"dense": dense, "again": dense}
    made = {"conv": conv, "flat": flat, **twice, "squashed": squashed, "soft": soft}
    return draw.static(**made, narrow=narrow, input="x", weight="linear_weight")


def expected(x: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    exact = {name: weight.double() for name, weight in weights.items()}
    conv = conv2d(x.double(), exact["conv_weight"], padding=1).relu()
    flat = conv.reshape(2, 144)
    dense = flat @ exact["linear_weight"].t()
    return {
        "conv": conv,
        "flat": flat,
        "dense": dense,
        "again": dense,
        "squashed": dense.sigmoid(),
        "soft": dense.softmax(1),
        "narrow": conv2d(x.double(), exact["narrow_weight"], padding=1),
        "input": x.double(),
        "weight": exact["linear_weight"],
    }


def slot(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Row-major views of one block of memory, 64 bytes apart, full of NaN."""
    sizes = [-(-tensor.numel() // 16) * 16 for tensor in like.values()]
    block = torch.full((sum(sizes),), torch.nan)
    parts = block.split(sizes)
    return {
        name: part[: tensor.numel()].view(tensor.shape)
        for (name, tensor), part in zip(like.items(), parts, strict=True)
    }


class Copies(TorchDispatchMode):
    """Addresses that torch copies to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.targets: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.targets.add(args[0].data_ptr())
        return func(*args, **(kwargs or {}))


def check(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name].double(), tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_runs_fill_the_slots_they_are_given(executor: CpuExecutor, seed: int | None) -> None:
    template, constants = graph()
    program = on_kernels(template, constants, executor.threads)
    found = None if seed is None else random_plan(template, seed, seed % 2 == 0)
    plan = in_lanes(program, executor.threads, found)
    inputs = [torch.randn(2, 8, 6, 6) for _ in range(2)]
    wanted = [expected(x, constants) for x in inputs]
    slots = [slot(wanted[0]) for _ in inputs]

    for x, outputs in zip(inputs, slots, strict=True):
        assert run(executor, program, plan, {"x": x}, outputs=outputs) is outputs

    for outputs, want in zip(slots, wanted, strict=True):
        check(outputs, want)
    check(run(executor, program, plan, {"x": inputs[0]}), wanted[0])
    check(slots[1], wanted[1])


@pytest.mark.skipif(find_runner() is None, reason="needs the part in C")
def test_dense_outputs_are_written_in_place(executor: CpuExecutor) -> None:
    template, constants = graph()
    program = on_kernels(template, constants, executor.threads)
    plan = in_lanes(program, executor.threads)
    x = torch.randn(2, 8, 6, 6)
    outputs = slot(expected(x, constants))

    with Copies() as copies:
        run(executor, program, plan, {"x": x}, outputs=outputs)

    copied = {name for name, tensor in outputs.items() if tensor.data_ptr() in copies.targets}
    assert copied == set(outputs) - set(WRITTEN)


@pytest.mark.skipif(find_runner() is None, reason="needs the part in C")
def test_images_that_only_elementwise_units_touch_stay_row_major(executor: CpuExecutor) -> None:
    """x ─> doubled ─> y, of four axes and three channels."""
    draw = Drawing(x=(2, 3, 5, 7))
    y = draw.op("aten.relu", draw.op("aten.mul", "x", draw.constant(value=2.0)))
    program = on_kernels(*draw.static(y=y))
    plan = in_lanes(program, executor.threads)
    x = torch.randn(2, 3, 5, 7)
    wanted = {"y": (2 * x.double()).relu()}
    outputs = slot(wanted)

    with Copies() as copies:
        run(executor, program, plan, {"x": x}, outputs=outputs)

    check(outputs, wanted)
    assert outputs["y"].data_ptr() not in copies.targets
