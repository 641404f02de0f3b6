"""Outputs that a run leaves in memory of its caller, against float64.

x ─> conv ─> flat ─> dense ─> squashed      narrow: one channel, so images are row-major too
x ─> narrow           └─> soft              also outputs: x, a weight, dense under two names
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.utils._python_dispatch import TorchDispatchMode

from braid.core.graph import OpGraph
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.segments import find_runner
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.cpu.test_lanes import random_plan
from tests.engine.passes.drawing import CONV, Drawing

WRITTEN = ("conv", "flat", "dense", "squashed", "soft", "narrow")
"""Outputs that a sequential plan writes in place, outside the interpreter."""


executor = executor_of(threads=2)


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
