"""Specialising templates: shapes, host operands, branches, budgets, errors."""

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph
from braid.core.tensor import TensorType
from braid.engine.onnx.lowering import lower
from braid.engine.passes.specialise import interpret, specialise, static_inputs
from tests.engine.passes.drawing import drawn
from tests.models.graphs import parsed

Graph = tuple[OpGraph, Mapping[str, Tensor]]


def template(body: str, inputs: str = "float[batch, 4] x", /, **constants: Any) -> Graph:
    """The template of a model in ONNX's text format, to the output ``y``."""
    return lower(parsed(f"({inputs}) => (float[] y) {{ {body} }}", constants))


def static(given: Graph, **shapes: tuple[int, ...]) -> Graph:
    graph, weights = given
    specs = {name: TensorType(graph.inputs[name].dtype, shape) for name, shape in shapes.items()}
    return specialise(graph, weights, specs)


def kinds(graph: OpGraph) -> list[str]:
    return [op.kind for op in graph.operators]


#   x ──> shape ──> slice ──> cat([.., -1]) ┄host┄> reshape
#    └───────────────────────────────────────────────┘
SHAPED = template(
    """s = Shape(x)  n = Slice(s, zero, one)  target = Concat<axis=0>(n, minus_one)
    y = Reshape(x, target)""",
    zero=[0],
    one=[1],
    minus_one=[-1],
)


def test_shape_arithmetic_becomes_an_attribute() -> None:
    graph, _ = static(SHAPED, x=(3, 4))

    assert kinds(graph) == ["braid.reshape"]
    assert graph.operators[0].attributes["shape"] == [3, -1]
    assert graph.spec(graph.outputs["y"]) == TensorType("FP32", (3, 4))
    assert not graph.constants


def test_shape_arithmetic_that_data_needs_becomes_a_small_constant() -> None:
    graph, constants = static(
        template("n = Size(x)  count = Cast<to=1>(n)  y = Div(x, count)"), x=(2, 4)
    )

    assert kinds(graph) == ["aten.div"]
    assert [tensor.item() for tensor in constants.values()] == [8.0]


def test_a_repeated_constant_lies_in_the_order_of_its_shape() -> None:
    row = torch.arange(4.0)
    given = template("s = Shape(x)  rows = Expand(row, s)  y = Add(x, rows)", row=row.numpy())

    _, constants = static(given, x=(3, 4))

    (rows,) = constants.values()
    assert rows.is_contiguous()
    torch.testing.assert_close(rows, row.repeat(3, 1))


def test_operators_that_no_output_needs_are_gone() -> None:
    assert kinds(static(template("y = Relu(x)  unused = Exp(x)"), x=(2, 4))[0]) == ["aten.relu"]


def test_large_generated_tensors_are_kept_as_operators() -> None:
    ones = "constant_of_shape(shape=[2000, 2000], value=1.0, dtype='FP32')"
    drawing, outputs = drawn(f"sum({ones})", x=(2, 4))

    graph, _ = drawing.static(*outputs)

    assert kinds(graph) == ["braid.constant_of_shape", "aten.sum"]


def test_identities_are_names_not_operators() -> None:
    graph, _ = static(template("a = Identity(x)  y = Identity(a)"), x=(2, 4))

    assert not graph.operators
    assert list(graph.outputs.values()) == ["x"]
    assert interpret(graph, {}, {"x": torch.ones(2, 4)})["y"].sum() == 8


RATED, SIXTEEN = template(
    """same = Equal(rate, sixteen)
    y = If<then_branch = t () => (float[] p) { p = Relu(x) },
           else_branch = e () => (float[] q) { q = Exp(x) }>(same)""",
    "float[batch, 4] x, int64 rate",
    sixteen=16,
)
RATED_INPUTS = {"x": TensorType("FP32", (2, 4)), "rate": TensorType("INT64", ())}


@pytest.mark.parametrize(("rate", "kind"), [(16, "aten.relu"), (8, "aten.exp")])
def test_a_static_input_chooses_the_branch(rate: int, kind: str) -> None:
    graph, _ = specialise(RATED, SIXTEEN, RATED_INPUTS, {"rate": torch.tensor(rate)})

    assert static_inputs(RATED) == ("rate",)
    assert kinds(graph) == [kind]


def test_a_static_input_whose_content_is_not_given_is_named() -> None:
    with pytest.raises(InvalidRequest, match="content of input 'rate'"):
        specialise(RATED, SIXTEEN, RATED_INPUTS)


def test_inputs_whose_shape_alone_matters_are_not_static() -> None:
    assert static_inputs(SHAPED[0]) == ()


RELU = template("y = Relu(x)")


@pytest.mark.parametrize(
    "spec",
    [
        TensorType("FP32", (2, 5)),
        TensorType("FP32", (2, 4, 1)),
        TensorType("INT64", (2, 4)),
        TensorType("FP32", ("batch", 4)),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_named(spec: TensorType) -> None:
    with pytest.raises(InvalidRequest, match=r"input 'x' is .*, the model takes FP32\[batch, 4\]"):
        specialise(*RELU, {"x": spec})


def test_one_symbol_has_one_extent() -> None:
    given = template("y = Add(x, z)", "float[batch, 4] x, float[batch, 4] z")

    with pytest.raises(InvalidRequest, match=r"input 'z'.*where \{'batch': 2\}"):
        static(given, x=(2, 4), z=(3, 4))


def test_missing_and_extra_inputs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"inputs are \['x'\], not \['z'\]"):
        specialise(*RELU, {"z": TensorType("FP32", (2, 4))})


@pytest.mark.parametrize(
    ("body", "shape", "words"),
    [
        ("y = MatMul(x, w)", (2, 7), r"\(aten.linear\).*FP32\[2, 7\].*5, 4"),
        # refused before it exists
        ("y = Expand(x, huge)", (2, 4), r"\(braid.expand\) would make a tensor of"),
        # what is evaluated in advance has a budget
        (
            "a = ConstantOfShape<value = int64[1] {1}>(long)  n = ReduceSum(a)  y = Expand(x, n)",
            (1, 4),
            "cannot be evaluated in advance",
        ),
        ("places = NonZero(x)  y = Cast<to=1>(places)", (2, 4), "depends on the data"),
    ],
)
def test_what_cannot_run_at_a_shape_names_the_operator(
    body: str, shape: tuple[int, ...], words: str
) -> None:
    constants: dict[str, Any] = {"huge": [2**38, 2, 4], "long": [2**25]}
    constants["w"] = torch.zeros(4, 5).numpy()

    with pytest.raises(InvalidRequest, match=words):
        static(template(body, "float[batch, width] x", **constants), x=shape)


def test_the_constants_of_the_template_are_shared() -> None:
    given = template("y = Add(x, w)", w=torch.ones(4).numpy())

    assert static(given, x=(2, 4))[1]["w"] is given[1]["w"]


def test_an_epilogue_runs_after_its_operator() -> None:
    steps = "epilogue=[['aten.relu'], ['aten.clamp', 'max', 3.0]]"
    drawing, outputs = drawn(f"add(x, x, {steps})", x=(1, 4))

    (y,) = interpret(
        *drawing.static(*outputs), {"x": torch.tensor([[-1.0, 1.0, 2.0, 9.0]])}
    ).values()

    assert y.tolist() == [[0.0, 2.0, 3.0, 3.0]]


def calls_to_specialise(operators: int) -> int:
    """How many function calls a chain of ``operators`` takes."""
    values = ["x", *(f"v{i}" for i in range(operators - 1)), "y"]
    chain = template(" ".join(f"{b} = Relu({a})" for a, b in pairwise(values)))
    static(chain, x=(2, 4))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        static(chain, x=(3, 4))
    finally:
        sys.setprofile(None)
    return calls


def test_effort_grows_with_the_number_of_operators_and_no_faster() -> None:
    assert calls_to_specialise(400) < 4.4 * calls_to_specialise(100)
