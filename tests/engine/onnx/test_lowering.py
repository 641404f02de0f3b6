"""What lowering makes of a graph, and what it refuses."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import graph_from_json, graph_to_json
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from tests.engine.onnx.oracle import assert_agrees
from tests.models.graphs import from_x, own_function, parsed

FLOAT = TensorProto.FLOAT


def kinds(model: onnx.ModelProto) -> list[str]:
    return [op.kind for op in lower(model)[0].operators]


INPUT = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
MATRIX = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
VECTOR = np.arange(5, dtype=np.float32)
PRODUCT = "h = MatMul(x, w)"


@pytest.mark.parametrize(
    ("body", "bias", "made"),
    [
        (f"{PRODUCT}  y = Add(b, h)", VECTOR, ["aten.linear", "aten.add"]),
        (f"{PRODUCT}  y = Add(h, b)", np.float32(2), ["aten.linear", "aten.add"]),
        (f"{PRODUCT}  y = Add(h, b)", VECTOR[None, None], ["aten.linear", "aten.add"]),
        (
            f"{PRODUCT}  i = Identity(h)  s = Add(i, b)  y = Mul(s, i)",
            VECTOR,
            ["aten.linear", "aten.add", "aten.mul"],
        ),
    ],
)
def test_matmul_by_a_constant_is_linear_and_a_sum_is_left_to_the_passes(
    body: str, bias: Any, made: list[str]
) -> None:
    model = from_x(body, w=MATRIX, b=bias)

    assert kinds(model) == made
    assert_agrees(model, INPUT)


def test_operands_computed_from_constants_are_attributes() -> None:
    model = from_x("shape = Concat<axis=0>(a, b)  y = Reshape(x, shape)", a=[0], b=[2, 2])
    (reshape,) = lower(model)[0].operators

    assert reshape.attributes["shape"] == [0, 2, 2]
    assert not reshape.host


def test_operands_computed_from_shapes_are_read_on_the_host() -> None:
    operators = lower(from_x("s = Shape(x)  y = Reshape(x, s)"))[0].operators

    assert operators[1].host == {"shape": "s"}


def test_nodes_in_any_order_are_sorted() -> None:
    assert kinds(from_x("y = Relu(h)  h = Exp(x)")) == ["aten.exp", "aten.relu"]


BRANCHES = """y = If<then_branch = t () => (float[] p) {{ p = {} }},
    else_branch = e () => (float[] q) {{ q = {} }}>(c)"""


def test_a_template_survives_json() -> None:
    condition = "s = ReduceSum<keepdims=0>(x)  c = Greater(s, zero)"
    model = from_x(f"{condition}  {BRANCHES.format('Relu(x)', 'Relu(x)')}", zero=np.float32(0))
    graph, _ = lower(model)

    assert graph_from_json(graph_to_json(graph)) == graph


def test_a_constant_condition_leaves_only_its_branch() -> None:
    model = from_x(BRANCHES.format("Relu(x)", "NonMaxSuppression(x, x)"), c=True)

    assert kinds(model) == ["aten.relu"]


def test_everything_unsupported_is_named_at_once() -> None:
    model = from_x(
        f"""a = own.Fancy(x)  s = ReduceSum<keepdims=0>(a)  c = Greater(s, zero)
        {BRANCHES.format("StringNormalizer(x)", "StringNormalizer(x)").replace("y =", "b =")}
        d = LeakyRelu<slope=0.5>(b)
        e = LSTM<hidden_size=1, activations=["Swoosh", "Swoosh", "Swoosh"]>(d, w, w)
        y = Relu(e)""",
        zero=np.float32(0),
        w=MATRIX,
    )
    for node in model.graph.node:
        node.name = node.output[0]

    with pytest.raises(UnsupportedOperators) as caught:
        lower(model)

    assert caught.value.reasons == (
        "Fancy (a): custom domain 'own'",
        "StringNormalizer (b/then/StringNormalizer_0): not in the table",
        "StringNormalizer (b/else/StringNormalizer_0): not in the table",
        "LeakyRelu (d): attribute slope not covered",
        "LSTM (e): activations=['Swoosh', 'Swoosh', 'Swoosh']",
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("y = Relu<alpha=1.0>(x)", "attribute alpha not covered"),
        ("y = Relu(x, x)", "operand 1 not covered"),
        ("y, z = Relu(x)", "output 1 not covered"),
        ('y = Softmax<axis="last">(x)', "attribute axis has type 3, not 2"),
        ('y = Pad<mode="mirror">(x, p)', "mode='mirror'"),
        ("y = Dropout(x, r, t)", "training_mode"),
        ("y = BatchNormalization<training_mode=1>(x, x, x, x, x)", "training_mode=1"),
        ("y = Add(x)", "operand 1 is missing"),
        (f"y = Cast<to={TensorProto.STRING}>(x)", "element type STRING"),
    ],
)
def test_what_the_table_does_not_know_is_refused(bad: str, reason: str) -> None:
    with pytest.raises(UnsupportedOperators, match=reason):
        lower(from_x(bad, p=np.zeros(4, np.int64), r=np.float32(0.5), t=True))


def test_a_form_newer_than_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.engine.onnx import lowering_table as registry
    from braid.engine.onnx.lowering_table import Lowering

    old = Lowering("Relu", registry.TABLE["Relu"].lower, 6, 13)
    monkeypatch.setitem(registry._TABLE, "Relu", old)

    with pytest.raises(UnsupportedOperators, match="form of opset 14 is not covered"):
        lower(from_x("y = Relu(x)"))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (from_x("y = Add(x, y)"), "cycle through Add_0"),
        (from_x("a = Relu(x)"), "output 'y' is never produced"),
        (parsed("(float[n] x) => (float[] x) { x = Relu(x) }"), "'x' is produced twice"),
        (parsed("(float[n] x) => (float[] y) { y = Relu(x) }", opset=6), "operator set 6"),
    ],
)
def test_malformed_graphs_are_refused(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelImportError, match=reason):
        lower(model)


def test_a_chain_of_many_nodes_is_no_recursion() -> None:
    made = from_x("")
    made.graph.node.extend(
        helper.make_node("Relu", [f"v{at - 1}" if at else "x"], [f"v{at}" if at < 5_000 else "y"])
        for at in range(5_000, -1, -1)
    )

    assert len(kinds(made)) == 5_001


@pytest.mark.parametrize("dims", [[2, 2], [2**40, 2**40]])
def test_initialisers_with_fewer_elements_than_they_say_are_refused(dims: list[int]) -> None:
    model = from_x("y = Add(x, w)")
    model.graph.initializer.add(name="w", data_type=FLOAT, dims=dims, float_data=[1.0])

    with pytest.raises(ModelImportError, match="does not hold"):
        lower(model)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16, np.bool_])
def test_initialisers_of_any_type_keep_their_content(dtype: Any) -> None:
    content = np.arange(6).reshape(2, 3).astype(dtype)
    model = from_x("y = Shape(x)", w=content)
    model.graph.output.append(helper.make_empty_tensor_value_info("w"))

    np.testing.assert_array_equal(lower(model)[1]["w"].numpy(), content)


def test_constants_share_no_memory() -> None:
    model = from_x(
        """left, right = Split<axis=0>(w)  a = Add(x, left)  b = Mul(a, right)
        flat = Reshape(w, shape)  c = Add(b, flat)  d = MatMul(c, square)  y = Add(d, square)""",
        "1, 4",
        w=np.arange(8, dtype=np.float32).reshape(2, 4)[:, :],
        shape=[2, 1, 4],
        square=MATRIX[:, :4],
    )

    _, constants = lower(model)

    pointers = [tensor.untyped_storage().data_ptr() for tensor in constants.values()]
    assert len(set(pointers)) == len(pointers) == 5
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in constants.values())
    assert all(tensor.is_contiguous() for tensor in constants.values())


def test_open_extents_get_names() -> None:
    model = from_x("y = Relu(x)", "n, n, n, 7")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[1].Clear()
    dims[2].dim_param = "?"

    (spec,) = lower(model)[0].inputs.values()

    assert spec.shape == ("n", "x.1", "x.2", 7)


TWO = own_function("Two (a) => (z)", "b = Relu(a)  z = Relu(b)")
FOUR = own_function("Four (a) => (z)", "b = own.Two(a)  z = own.Two(b)")


@pytest.mark.parametrize(("name", "count"), [("Two", 2), ("Four", 4)])
def test_functions_are_inlined(name: str, count: int) -> None:
    model = from_x(f"y = own.{name}(x)", functions=TWO + FOUR)

    assert kinds(prepare(model)) == ["aten.relu"] * count


def test_functions_are_inlined_where_outputs_declare_no_shape() -> None:
    model = from_x("y = own.Two(x)", functions=TWO)
    model.graph.output[0].type.tensor_type.ClearField("shape")

    assert kinds(prepare(model)) == ["aten.relu"] * 2
    assert not model.graph.output[0].type.tensor_type.HasField("shape")
