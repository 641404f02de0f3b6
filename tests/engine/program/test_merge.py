"""Merged units give the numbers of the units alone, in every plan that holds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from braid.core.errors import InvalidArtefact
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.plan import Launch, StreamPlan
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.passes.specialise import interpret, specialise
from braid.engine.program.merge import merge_groups
from tests.engine.cpu.executors import in_lanes, on_kernels

RELU: Literal = [["aten.relu"]]


@pytest.fixture(scope="module")
def executor() -> Iterator[CpuExecutor]:
    made = CpuExecutor(threads=2)
    with torch.inference_mode():
        yield made
    made.close()


class Drawing:
    """Units that read the input ``x`` and what they are merged of."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.weights: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self._random = torch.Generator().manual_seed(0)

    def conv(self, out: int, kernel: tuple[int, int], **changed: Literal) -> Drawing:
        """A convolution that keeps the extents, unless ``changed`` says otherwise."""
        number = len(self.operators)
        weight, bias = f"w{number}", f"b{number}"
        shape = (out, self.x.shape[1], *kernel)
        self.weights[weight] = torch.randn(shape, generator=self._random)
        self.weights[bias] = torch.randn(out, generator=self._random)
        usual: dict[str, Literal] = {
            "stride": [1, 1], "padding": [k // 2 for k in kernel], "dilation": [1, 1],
            "transposed": False, "output_padding": [0, 0], "groups": 1, "epilogue": RELU,
        }  # fmt: skip
        inputs = ("x", weight, bias)
        self._add("aten.convolution", inputs, {**usual, **changed})
        return self

    def linear(self, out: int) -> Drawing:
        weight = f"w{len(self.operators)}"
        self.weights[weight] = torch.randn(out, self.x.shape[-1], generator=self._random)
        self._add("aten.linear", ("x", weight), {})
        return self

    def _add(self, kind: str, inputs: tuple[str, ...], attributes: dict[str, Literal]) -> None:
        name = f"y{len(self.operators)}"
        self.operators.append(Operator(name, kind, inputs, (name,), attributes))

    def graph(self) -> tuple[OpGraph, dict[str, Tensor]]:
        """A static graph; the outputs of all units are joined if they are images."""
        names = [op.outputs[0] for op in self.operators]
        operators, outputs = list(self.operators), names
        if self.x.dim() == 4:
            operators.append(Operator("cat", "aten.cat", tuple(names), ("cat",), {"dim": 1}))
            outputs = ["cat", names[0]]
        template = OpGraph(
            name="drawn",
            inputs={"x": TensorType("FP32", tuple(self.x.shape))},
            outputs={name: name for name in outputs},
            constants={k: TensorType("FP32", tuple(w.shape)) for k, w in self.weights.items()},
            operators=tuple(operators),
        )
        return specialise(template, self.weights, template.inputs, {})


def run_merged(executor: CpuExecutor, drawing: Drawing, merged: tuple[int, ...]) -> None:
    """Run with ``merged`` as one kernel and compare with the interpreter."""
    graph, constants = drawing.graph()
    program = on_kernels(graph, constants, executor.threads)
    rest = [unit for unit in range(len(graph)) if unit not in merged]
    order = [*merged, *rest]
    plan = StreamPlan(tuple(Launch(unit, 0) for unit in order), 1, merges=(merged,))

    laid_out = in_lanes(program, executor.threads, plan)
    expected = interpret(graph, constants, {"x": drawing.x})
    given = {name: torch.full(tensor.shape, torch.nan) for name, tensor in expected.items()}

    got = executor.run(program, laid_out, {"x": drawing.x})
    executor.run(program, laid_out, {"x": drawing.x}, outputs=given)

    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(given[name], tensor, rtol=1e-4, atol=1e-4)


def test_kernels_of_different_size_are_padded_around_their_centre(executor: CpuExecutor) -> None:
    drawing = Drawing(torch.randn(2, 5, 9, 8)).conv(4, (1, 1)).conv(6, (3, 3)).conv(2, (1, 7))

    assert merge_groups(drawing.graph()[0]) == [[0, 1, 2]]
    run_merged(executor, drawing, (0, 1, 2))
    run_merged(executor, drawing, (2, 0))


def test_even_kernels_merge_with_even_ones_only(executor: CpuExecutor) -> None:
    drawing = Drawing(torch.randn(1, 3, 8, 8))
    drawing.conv(4, (2, 2), padding=[0, 0]).conv(4, (3, 3), padding=[0, 0])
    drawing.conv(3, (4, 4), padding=[1, 1]).conv(2, (1, 1), padding=[0, 0])

    # 3x3 and 1x1 without padding are centred differently: nothing but the even pair is left.
    graph = OpGraph("g", *graph_parts(drawing))
    assert merge_groups(graph) == [[0, 2]]


def graph_parts(
    drawing: Drawing,
) -> tuple[
    dict[str, TensorType],
    dict[str, str],
    dict[str, TensorType],
    tuple[Operator, ...],
    dict[str, TensorType],
]:
    """The drawn units without a common reader: their outputs differ in extent."""
    names = [op.outputs[0] for op in drawing.operators]
    template = OpGraph(
        "drawn", {"x": TensorType("FP32", tuple(drawing.x.shape))}, {n: n for n in names},
        {k: TensorType("FP32", tuple(w.shape)) for k, w in drawing.weights.items()},
        tuple(drawing.operators),
    )  # fmt: skip
    graph, _ = specialise(template, drawing.weights, template.inputs, {})
    return (
        dict(graph.inputs), dict(graph.outputs), dict(graph.constants), graph.operators,
        dict(graph.specs),
    )  # fmt: skip


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
    drawing = Drawing(torch.randn(1, 3, 8, 8)).conv(4, (3, 3)).conv(4, (3, 3), **changed)

    assert merge_groups(OpGraph("g", *graph_parts(drawing))) == []


def test_strided_and_dilated_convolutions_merge_among_themselves(executor: CpuExecutor) -> None:
    window: dict[str, Literal] = {"stride": [2, 2], "dilation": [2, 2]}
    drawing = Drawing(torch.randn(1, 3, 12, 12))
    drawing.conv(4, (3, 3), padding=[2, 2], **window).conv(5, (1, 1), padding=[0, 0], **window)

    run_merged(executor, drawing, (0, 1))


def test_linear_layers_of_one_input_merge(executor: CpuExecutor) -> None:
    drawing = Drawing(torch.randn(2, 3, 16)).linear(8).linear(8).linear(4)

    run_merged(executor, drawing, (0, 1, 2))


def test_units_that_cannot_merge_are_refused(executor: CpuExecutor) -> None:
    drawing = Drawing(torch.randn(1, 3, 8, 8)).conv(4, (3, 3)).conv(4, (3, 3), epilogue=[])

    with pytest.raises(InvalidArtefact, match="cannot run as one kernel"):
        run_merged(executor, drawing, (0, 1))


def test_a_plan_merges_neighbours_on_one_stream_only() -> None:
    launches = (Launch(0, 0), Launch(1, 1), Launch(2, 0))

    with pytest.raises(InvalidArtefact, match="launched in a row"):
        StreamPlan(launches, 2, merges=((0, 2),))
    with pytest.raises(InvalidArtefact, match="launched in a row"):
        StreamPlan(launches, 2, merges=((0, 1),))
