"""What lowering makes of a graph, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import graph_from_json, graph_to_json
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from tests.engine.onnx.oracle import as_model, assert_agrees, with_output_types

FLOAT = TensorProto.FLOAT


def network(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Any] | None = None,
    output: str = "y",
    opset: int = 17,
    extents: Sequence[Any] = ("n", 4),
) -> onnx.ModelProto:
    """A model from x [n, 4] to y."""
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", FLOAT, extents)],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    return as_model(graph, opset)


def node(op_type: str, reads: str, makes: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, reads.split(), makes.split(), name=makes, **attributes)


def kinds(model: onnx.ModelProto) -> list[str]:
    return [op.kind for op in lower(model)[0].operators]


INPUT = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
MATRIX = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
VECTOR = np.arange(5, dtype=np.float32)


@pytest.mark.parametrize(
    "bias", [VECTOR, np.float32(2), VECTOR[None, None]], ids=["vector", "scalar", "rank 3"]
)
def test_matmul_by_a_constant_is_linear_and_a_sum_is_left_to_the_passes(bias: Any) -> None:
    model = network([node("MatMul", "x w", "h"), node("Add", "h b", "y")], {"w": MATRIX, "b": bias})

    assert kinds(model) == ["aten.linear", "aten.add"]
    assert_agrees(model, INPUT)


def test_a_product_that_is_read_through_an_identity_keeps_its_value() -> None:
    nodes = [
        node("MatMul", "x w", "h"),
        node("Identity", "h", "i"),
        node("Add", "i b", "s"),
        node("Mul", "s i", "y"),
    ]
    model = network(nodes, {"w": MATRIX, "b": VECTOR})

    assert_agrees(model, INPUT)


def test_operands_computed_from_constants_are_attributes() -> None:
    nodes = [node("Concat", "a b", "shape", axis=0), node("Reshape", "x shape", "y")]
    model = network(nodes, {"a": np.array([0]), "b": np.array([2, 2])})
    (reshape,) = lower(model)[0].operators

    assert reshape.attributes["shape"] == [0, 2, 2]
    assert not reshape.host


def test_operands_computed_from_shapes_are_read_on_the_host() -> None:
    nodes = [node("Shape", "x", "s"), node("Reshape", "x s", "y")]

    assert lower(network(nodes))[0].operators[1].host == {"shape": "s"}


def test_nodes_in_any_order_are_sorted() -> None:
    nodes = [node("Relu", "h", "y"), node("Exp", "x", "h")]

    assert kinds(network(nodes)) == ["aten.exp", "aten.relu"]


def test_a_template_survives_json() -> None:
    branch = helper.make_graph(
        [node("Relu", "x", "r")], "branch", [], [helper.make_empty_tensor_value_info("r")]
    )
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "y", then_branch=branch, else_branch=branch),
    ]
    graph, _ = lower(network(nodes, {"zero": np.float32(0)}))

    assert graph_from_json(graph_to_json(graph)) == graph


def test_a_constant_condition_leaves_only_its_branch() -> None:
    good = helper.make_graph(
        [node("Relu", "x", "r")], "then", [], [helper.make_empty_tensor_value_info("r")]
    )
    bad = helper.make_graph(
        [node("NonMaxSuppression", "x x", "r")],
        "else",
        [],
        [helper.make_empty_tensor_value_info("r")],
    )
    model = network([node("If", "c", "y", then_branch=good, else_branch=bad)], {"c": True})

    assert kinds(model) == ["aten.relu"]


def test_everything_unsupported_is_named_at_once() -> None:
    branch = helper.make_graph(
        [helper.make_node("StringNormalizer", ["x"], ["r"], name="deep")],
        "branch",
        [],
        [helper.make_empty_tensor_value_info("r")],
    )
    nodes = [
        helper.make_node("Fancy", ["x"], ["a"], domain="acme", name="first"),
        node("ReduceSum", "a", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "b", then_branch=branch, else_branch=branch),
        node("LeakyRelu", "b", "d", slope=0.5),
        node("LSTM", "d w w", "e", hidden_size=1, activations=["Swoosh"] * 3),
        node("Relu", "e", "y"),
    ]

    with pytest.raises(UnsupportedOperators) as caught:
        lower(network(nodes, {"zero": np.float32(0), "w": MATRIX}))

    assert caught.value.reasons == (
        "Fancy (first): custom domain 'acme'",
        "StringNormalizer (b/then/deep): not in the table",
        "StringNormalizer (b/else/deep): not in the table",
        "LeakyRelu (d): attribute slope not covered",
        "LSTM (e): activations=['Swoosh', 'Swoosh', 'Swoosh']",
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (node("Relu", "x", "y", alpha=1.0), "attribute alpha not covered"),
        (node("Relu", "x x", "y"), "operand 1 not covered"),
        (node("Relu", "x", "y z"), "output 1 not covered"),
        (node("Softmax", "x", "y", axis="last"), "attribute axis has type 3, not 2"),
        (node("Pad", "x p", "y", mode="mirror"), "mode='mirror'"),
        (node("Dropout", "x r t", "y"), "training_mode"),
        (node("BatchNormalization", "x x x x x", "y", training_mode=1), "training_mode=1"),
        (node("Add", "x", "y"), "operand 1 is missing"),
        (node("Cast", "x", "y", to=TensorProto.STRING), "element type STRING"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.op_type,
)
def test_what_the_table_does_not_know_is_refused(bad: onnx.NodeProto, reason: str) -> None:
    constants = {"p": np.zeros(4, np.int64), "r": np.float32(0.5), "t": np.array(True)}

    with pytest.raises(UnsupportedOperators, match=reason):
        lower(network([bad], constants))


def test_a_form_newer_than_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.engine.onnx import lowering_table as registry
    from braid.engine.onnx.lowering_table import Lowering

    old = Lowering("Relu", registry.TABLE["Relu"].lower, 6, 13)
    monkeypatch.setitem(registry._TABLE, "Relu", old)

    with pytest.raises(UnsupportedOperators, match="form of opset 14 is not covered"):
        lower(network([node("Relu", "x", "y")]))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (network([node("Add", "x y", "y")]), "cycle through y"),
        (network([node("Relu", "x", "a")]), "output 'y' is never produced"),
        (network([node("Relu", "x", "x")], output="x"), "'x' is produced twice"),
        (network([node("Relu", "x", "y")], opset=6), "operator set 6"),
    ],
)
def test_malformed_graphs_are_refused(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelImportError, match=reason):
        lower(model)


def test_a_chain_of_many_nodes_is_no_recursion() -> None:
    names = ["x", *(f"v{i}" for i in range(20_000)), "y"]
    nodes = [node("Relu", a, b) for a, b in pairwise(names)]

    assert len(kinds(network(nodes[::-1]))) == 20_001


@pytest.mark.parametrize("dims", [[2, 2], [2**40, 2**40]])
def test_initialisers_with_fewer_elements_than_they_say_are_refused(dims: list[int]) -> None:
    model = network([node("Add", "x w", "y")])
    model.graph.initializer.add(name="w", data_type=FLOAT, dims=dims, float_data=[1.0])

    with pytest.raises(ModelImportError, match="does not hold"):
        lower(model)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16, np.bool_])
def test_initialisers_of_any_type_keep_their_content(dtype: Any) -> None:
    content = np.arange(6).reshape(2, 3).astype(dtype)
    model = network([node("Shape", "x", "y")], {"w": content})
    model.graph.output.append(helper.make_empty_tensor_value_info("w"))

    np.testing.assert_array_equal(lower(model)[1]["w"].numpy(), content)


def test_constants_share_no_memory() -> None:
    nodes = [
        node("Split", "w", "left right", axis=0),
        node("Add", "x left", "a"),
        node("Mul", "a right", "b"),
        node("Reshape", "w shape", "flat"),
        node("Add", "b flat", "c"),
        node("MatMul", "c square", "d"),
        node("Add", "d square", "y"),
    ]
    arrays = {
        "w": np.arange(8, dtype=np.float32).reshape(2, 4)[:, :],
        "shape": np.array([2, 1, 4]),
        "square": MATRIX[:, :4],
    }
    model = network(nodes, arrays, extents=(1, 4))

    _, constants = lower(model)

    pointers = [tensor.untyped_storage().data_ptr() for tensor in constants.values()]
    assert len(set(pointers)) == len(pointers) == 5
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in constants.values())
    assert all(tensor.is_contiguous() for tensor in constants.values())


def test_open_extents_get_names() -> None:
    extents = ["n", None, "?", 7]

    (spec,) = lower(network([node("Relu", "x", "y")], extents=extents))[0].inputs.values()

    assert spec.shape == ("n", "x.1", "x.2", 7)


def function(name: str, calls: Sequence[str]) -> onnx.FunctionProto:
    """A function of one operand that calls others one after the other."""
    values = ["a", *(f"v{i}" for i in range(len(calls) - 1)), "z"]
    steps = zip(calls, values, values[1:], strict=False)
    nodes = [
        helper.make_node(call, [a], [b], domain="" if call == "Relu" else "f")
        for call, a, b in steps
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["a"], ["z"], nodes, opsets)


def with_functions(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    model = network([helper.make_node(functions[-1].name, ["x"], ["y"], domain="f")])
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("f", 1))
    return model


def test_functions_are_inlined() -> None:
    model = with_functions(function("Two", ["Relu", "Relu"]), function("Four", ["Two", "Two"]))

    assert kinds(prepare(with_output_types(model))) == ["aten.relu"] * 4


def test_functions_are_inlined_where_outputs_declare_no_shape() -> None:
    model = with_functions(function("Two", ["Relu", "Relu"]))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT

    assert kinds(prepare(model)) == ["aten.relu"] * 2
    assert not model.graph.output[0].type.tensor_type.HasField("shape")
