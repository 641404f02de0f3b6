"""Residual sums and linear layers behind reshapes: fused where nothing that overlaps is lost."""

from __future__ import annotations

import torch

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.passes.fusion import fuse_flat_linears, fuse_residuals
from braid.engine.passes.specialise import interpret
from tests.engine.passes.drawing import Drawing, assert_same_numbers, epilogue, kinds

SPEC = TensorType("FP32", (1, 4, 5, 5))
WINDOW: dict[str, Literal] = {
    "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False,
    "output_padding": [0, 0], "groups": 1,
}  # fmt: skip


def graph_of(*operators: Operator, outputs: tuple[str, ...] = ("y",)) -> OpGraph:
    made = [name for op in operators for name in op.outputs]
    graph = OpGraph(
        name="drawn",
        inputs={"x": SPEC},
        outputs={name: name for name in outputs},
        constants={"w": TensorType("FP32", (4, 4, 3, 3))},
        operators=operators,
        specs=dict.fromkeys(made, SPEC),
    )
    graph.verify()
    return graph


def conv(name: str, data: str, **more: Literal) -> Operator:
    return Operator(name, "aten.convolution", (data, "w"), (name,), {**WINDOW, **more})


def add(name: str, left: str, right: str, **more: Literal) -> Operator:
    return Operator(name, "aten.add", (left, right), (name,), more)


RELU: list[Literal] = [["aten.relu"]]


#   x ─> a ─> b ─> y      the summand x is there before b can start
#   └──────────────┘
def test_a_shortcut_is_fused_with_its_activation() -> None:
    graph = graph_of(
        conv("a", "x", epilogue=RELU), conv("b", "a"), add("y", "b", "x", epilogue=RELU)
    )

    fused = fuse_residuals(graph)

    fused.verify()
    assert [op.kind for op in fused.operators] == ["aten.convolution", "braid.convolution_add"]
    same_numbers(graph, fused)


#   x ─> a ─┐
#   └──> b ─┴─> y         a and b could run side by side; y as part of b would wait for a
def test_two_branches_stay_apart() -> None:
    graph = graph_of(conv("a", "x"), conv("b", "x"), add("y", "a", "b"))

    assert fuse_residuals(graph) == graph


def test_what_others_read_before_the_sum_stays() -> None:
    graph = graph_of(conv("a", "x"), add("y", "a", "x"), outputs=("a", "y"))

    assert fuse_residuals(graph) == graph


def test_shortcuts_in_a_row_are_all_fused() -> None:
    graph = graph_of(
        conv("a", "x"), add("p", "x", "a", epilogue=RELU), conv("b", "p"), add("y", "b", "p")
    )

    fused = fuse_residuals(graph)

    assert [op.name for op in fused.operators] == ["a", "b"]
    same_numbers(graph, fused)


def same_numbers(graph: OpGraph, fused: OpGraph) -> None:
    torch.manual_seed(0)
    constants, inputs = {"w": torch.randn(4, 4, 3, 3)}, {"x": torch.randn(1, 4, 5, 5)}
    expected, got = interpret(graph, constants, inputs), interpret(fused, constants, inputs)
    torch.testing.assert_close(got["y"], expected["y"])


def flat(*, leading: list[Literal], back: list[Literal]) -> tuple[OpGraph, dict[str, torch.Tensor]]:
    """x [2, 3, 4] as rows through a linear layer and back, then an activation and a sum."""
    draw = Drawing(x=(2, 3, 4))
    rows = draw.op("braid.reshape", "x", shape=leading)
    product = draw.op("aten.linear", rows, draw.constant(4, 4), draw.constant(4))
    active = draw.op("aten.gelu", draw.op("braid.reshape", product, shape=back), approximate="none")
    return draw.static(draw.op("aten.add", active, "x"))


def test_rows_of_a_linear_layer_keep_their_axes() -> None:
    graph, constants = flat(leading=[-1, 4], back=[2, 3, 4])

    fused = fuse_residuals(fuse_flat_linears(graph, constants))

    fused.verify()
    assert kinds(fused) == ["linear", "add"]
    assert epilogue(fused.operators[0]) == ["gelu"]
    assert_same_numbers((graph, constants), (fused, constants))


def test_rows_that_are_put_otherwise_stay_apart() -> None:
    draw = Drawing(x=(2, 3, 4))
    product = draw.op("aten.linear", draw.op("braid.reshape", "x", shape=[6, 4]),
                      draw.constant(4, 4))  # fmt: skip
    graph, constants = draw.static(draw.op("braid.reshape", product, shape=[3, 2, 4]))

    assert kinds(fuse_flat_linears(graph, constants)) == ["reshape", "linear", "reshape"]


def test_a_number_of_one_row_is_no_row() -> None:
    draw = Drawing(x=(4,))
    row = draw.op("braid.reshape", "x", shape=[1, 4])
    product = draw.op("aten.linear", row, draw.constant(1, 4))
    graph, constants = draw.static(draw.op("braid.reshape", product, shape=[]))

    assert kinds(fuse_flat_linears(graph, constants)) == ["reshape", "linear", "reshape"]
