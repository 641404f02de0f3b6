"""Merged units give the numbers of the units alone, in every plan that holds them."""

from functools import cached_property

import pytest
import torch
from torch import Tensor

from braid.core.errors import InvalidArtefact
from braid.core.graph import Literal, OpGraph
from braid.core.plan import Launch, StreamPlan
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.passes.specialise import interpret
from braid.engine.program.merge import merge_groups
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.passes.drawing import CONV, Drawing

RELU: Literal = [["aten.relu"]]


executor = executor_of(threads=2)


class Units(Drawing):
    """Units that read the input ``x`` and what they are merged of."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x=tuple(x.shape))
        self.x, self.made = x, list[str]()

    def beside(self, out: int, kernel: tuple[int, int], **changed: Literal) -> "Units":
        """A convolution that keeps the extents, unless ``changed`` says otherwise."""
        usual: dict[str, Literal] = {**CONV, "padding": [k // 2 for k in kernel], "epilogue": RELU}
        weights = self.constant(out, self.x.shape[1], *kernel), self.constant(out)
        self.made.append(self.op("aten.convolution", "x", *weights, **{**usual, **changed}))
        return self

    def linear(self, out: int) -> "Units":
        weight = self.constant(out, self.x.shape[-1])
        self.made.append(self.op("aten.linear", "x", weight))
        return self

    @cached_property
    def joined(self) -> tuple[OpGraph, dict[str, Tensor]]:
        """A static graph; the outputs of all units are joined if they are images."""
        if self.x.dim() != 4:
            return self.static(*self.made)
        return self.static(cat=self.op("aten.cat", *self.made, dim=1), y0=self.made[0])


def run_merged(executor: CpuExecutor, drawing: Units, merged: tuple[int, ...]) -> None:
    """Run with ``merged`` as one kernel and compare with the interpreter."""
    graph, constants = drawing.joined
    program = on_kernels(graph, constants, executor.threads)
    rest = [unit for unit in range(len(graph)) if unit not in merged]
    order = [*merged, *rest]
    plan = StreamPlan(tuple(Launch(unit, 0) for unit in order), 1, merges=(merged,))

    laid_out = in_lanes(program, executor.threads, plan)
    expected = interpret(graph, constants, {"x": drawing.x})
    given = {name: torch.full(tensor.shape, torch.nan) for name, tensor in expected.items()}

    got = run(executor, program, laid_out, {"x": drawing.x})
    run(executor, program, laid_out, {"x": drawing.x}, outputs=given)

    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(given[name], tensor, rtol=1e-4, atol=1e-4)


def test_kernels_of_different_size_are_padded_around_their_centre(executor: CpuExecutor) -> None:
    drawing = Units(torch.randn(2, 5, 9, 8)).beside(4, (1, 1)).beside(6, (3, 3)).beside(2, (1, 7))

    assert merge_groups(drawing.joined[0]) == [[0, 1, 2]]
    run_merged(executor, drawing, (0, 1, 2))
    run_merged(executor, drawing, (2, 0))


def test_even_kernels_merge_with_even_ones_only(executor: CpuExecutor) -> None:
    drawing = Units(torch.randn(1, 3, 8, 8))
    drawing.beside(4, (2, 2), padding=[0, 0]).beside(4, (3, 3), padding=[0, 0])
    drawing.beside(3, (4, 4), padding=[1, 1]).beside(2, (1, 1), padding=[0, 0])

    # 3x3 and 1x1 without padding are centred differently: nothing but the even pair is left.
    assert merge_groups(drawing.static(*drawing.made)[0]) == [[0, 2]]


@pytest.mark.parametrize(
    "changed",
    [
        {"stride": [2, 2], "padding": [1, 1]},
        {"dilation": [2, 2], "padding": [2, 2]},
        {"epilogue": [["aten.silu"]]},
        {"padding": [0, 0]},
    ],
    ids=str,
)
def test_other_windows_and_activations_stay_apart(changed: dict[str, Literal]) -> None:
    drawing = Units(torch.randn(1, 3, 8, 8)).beside(4, (3, 3)).beside(4, (3, 3), **changed)

    assert merge_groups(drawing.static(*drawing.made)[0]) == []


def test_strided_and_dilated_convolutions_merge_among_themselves(executor: CpuExecutor) -> None:
    window: dict[str, Literal] = {"stride": [2, 2], "dilation": [2, 2]}
    drawing = Units(torch.randn(1, 3, 12, 12))
    drawing.beside(4, (3, 3), padding=[2, 2], **window).beside(5, (1, 1), padding=[0, 0], **window)

    run_merged(executor, drawing, (0, 1))


def test_linear_layers_of_one_input_merge(executor: CpuExecutor) -> None:
    drawing = Units(torch.randn(2, 3, 16)).linear(8).linear(8).linear(4)

    run_merged(executor, drawing, (0, 1, 2))


def test_units_that_cannot_merge_are_refused(executor: CpuExecutor) -> None:
    drawing = Units(torch.randn(1, 3, 8, 8)).beside(4, (3, 3)).beside(4, (3, 3), epilogue=[])

    with pytest.raises(InvalidArtefact, match="cannot run as one kernel"):
        run_merged(executor, drawing, (0, 1))


def test_a_plan_merges_neighbours_on_one_stream_only() -> None:
    launches = (Launch(0, 0), Launch(1, 1), Launch(2, 0))

    with pytest.raises(InvalidArtefact, match="launched in a row"):
        StreamPlan(launches, 2, merges=((0, 2),))
    with pytest.raises(InvalidArtefact, match="launched in a row"):
        StreamPlan(launches, 2, merges=((0, 1),))
