"""Operator sets 1 to 6: what an old file says is answered as it was meant then.

The oracle is ONNX Runtime where it has kernels for the file, numpy elsewhere.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.host.report import MODEL_FILE
from braid.engine.onnx.old_operators import raised
from tests.engine.importer.running import answers, imported
from tests.engine.onnx.oracle import through_onnxruntime, value_info

Array = NDArray[Any]
Oracle = Callable[..., Any]


def real(*shape: int) -> Array:
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape)
    return drawn.astype(np.float32)


def old_model(
    opset: int,
    op_type: str,
    x: Array,
    constants: tuple[Array, ...] = (),
    *,
    to: int = TensorProto.FLOAT,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A file of one node as it was written then: initialisers are inputs, too."""
    arrays = {"x": x, **{f"c{i}": array for i, array in enumerate(constants)}}
    names = [f"y{i}" for i in range(outputs)]
    infos = [value_info(name, array, array.shape) for name, array in arrays.items()]
    infos[0] = value_info("x", x, ["n", *x.shape[1:]])
    graph = helper.make_graph(
        [helper.make_node(op_type, [*arrays], names, **attributes)],
        "old",
        infos,
        [helper.make_tensor_value_info(name, to, None) for name in names],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name != "x"],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=3)


X, FLAT, C = real(2, 3, 4, 4), real(2, 3), np.array([0.5, 2, 3], np.float32)
PIXELS = C.reshape(3, 1, 1)
BOTH = np.array([[True, False, True], [False, False, True]])
WEIGHTS = real(3, 4)
CHANNELS = (C, C + 1, C + 2, C + 3)  # scale, bias, mean, variance
BROADCAST: dict[str, Oracle] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
    "Pow": lambda x, c: np.power(x, c),
    "Greater": np.greater, "Less": np.less,
}  # fmt: skip


def to_bool(op_type: str) -> int:
    return TensorProto.BOOL if op_type in ("Greater", "Less") else TensorProto.FLOAT


@pytest.mark.parametrize("opset", [1, 4, 6])
@pytest.mark.parametrize("op_type", BROADCAST)
def test_a_second_operand_begins_at_an_axis(op_type: str, opset: int, tmp_path: Path) -> None:
    x = np.abs(X)
    for name, axis, c in (("c", 1, C), ("hw", 2, real(4, 4) ** 2), ("chw", -3, real(3, 4) ** 2)):
        made = old_model(opset, op_type, x, (c,), to=to_bool(op_type), axis=axis, broadcast=1)
        following = x.ndim - axis % x.ndim - c.ndim
        expected = BROADCAST[op_type](x, c.reshape(*c.shape, *[1] * following))
        (folder := tmp_path / name).mkdir()

        np.testing.assert_allclose(answers(made, {"x": x}, folder)["y0"], expected, rtol=1e-4)


ROWS: dict[str, tuple[onnx.ModelProto, Oracle]] = {
    "suffix": (old_model(6, "Add", X, (real(4),), broadcast=1), lambda x: x + real(4)),
    "one element": (old_model(1, "Mul", X, (C[:1],), broadcast=1), lambda x: x * C[0]),
    "conv and bias": (
        onnx.parser.parse_model(
            """<ir_version: 3, opset_import: ["" : 3]>
            old (float[n, 3, 4, 4] x, float[2, 3, 1, 1] w, float[2] b) => (float[n, 2, 4, 4] y0)
            <float[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6}, float[2] b = {10, 20}>
            { h = Conv <kernel_shape = [1, 1]> (x, w)
              y0 = Add <axis = 1, broadcast = 1> (h, b) }"""
        ),
        lambda x: np.einsum("nchw,oc->nohw", x, [[1, 2, 3], [4, 5, 6]])
        + np.array([[[10]], [[20]]], np.float32),
    ),
    "xor": (
        old_model(1, "Xor", BOTH, (BOTH[0],), to=TensorProto.BOOL, broadcast=1),
        lambda x: x ^ BOTH[0],
    ),
    "batch norm 1": (
        old_model(
            1, "BatchNormalization", X, CHANNELS, is_test=1, consumed_inputs=[0, 0, 0, 1, 1]
        ),
        lambda x: (x - PIXELS - 2) / np.sqrt(PIXELS + 3 + 1e-5) * PIXELS + PIXELS + 1,
    ),
    "batch norm 6": (
        old_model(6, "BatchNormalization", X, CHANNELS, is_test=1),
        lambda x: (x - PIXELS - 2) / np.sqrt(PIXELS + 3 + 1e-5) * PIXELS + PIXELS + 1,
    ),
    "dropout 1": (old_model(1, "Dropout", X, is_test=1, ratio=0.3), lambda x: x),
    "dropout 6": (old_model(6, "Dropout", X, is_test=1), lambda x: x),
    "gemm 1": (
        old_model(1, "Gemm", FLAT, (WEIGHTS, real(4)), broadcast=1, alpha=2.0),
        lambda x: 2 * x @ WEIGHTS + real(4),
    ),
    "gemm 6": (
        old_model(6, "Gemm", FLAT, (WEIGHTS.T.copy(), real(4)), broadcast=1, transB=1),
        lambda x: x @ WEIGHTS + real(4),
    ),
    "pad 1": (
        old_model(1, "Pad", X, paddings=[0, 0, 1, 0, 0, 0, 0, 2]),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2))),
    ),
    "upsample 1": (
        old_model(1, "Upsample", X, height_scale=2.0, width_scale=3.0),
        lambda x: x.repeat(2, 2).repeat(3, 3),
    ),
    "clip 1": (old_model(1, "Clip", X, max=0.5), lambda x: np.minimum(x, 0.5)),
    "concat 1": (
        onnx.parser.parse_model(
            """<ir_version: 3, opset_import: ["" : 1]> old (float[n, 3] x) => (float[n, 6] y0)
            { y0 = Concat (x, x) }"""
        ),
        lambda x: np.concatenate([x, x], 1),
    ),
    "cast 1": (
        old_model(1, "Cast", X, to=TensorProto.INT32),
        lambda x: np.trunc(x),
    ),
    "split 1": (
        old_model(1, "Split", X, outputs=2, axis=2, split=[1, 3]),
        lambda x: np.split(x, [1], 2),
    ),
    "selu 1": (
        old_model(1, "Selu", X),
        lambda x: 1.0507 * np.where(x > 0, x, 1.6732 * (np.exp(x) - 1)),
    ),
    "prelu 1": (
        old_model(1, "PRelu", X, (C,)),
        lambda x: np.where(x > 0, x, x * PIXELS),
    ),
    "prelu 6, one slope": (
        old_model(6, "PRelu", X, (C[:1],)),
        lambda x: np.where(x > 0, x, x * C[0]),
    ),
    "global lp pool 1": (
        old_model(1, "GlobalLpPool", X, p=2.0),
        lambda x: np.sqrt((x**2).sum((2, 3), keepdims=True)),
    ),
    "max 1": (
        old_model(1, "Max", FLAT, (np.zeros_like(FLAT[:1]),), consumed_inputs=[0, 0]),
        lambda x: np.maximum(x, 0),
    ),
}  # fmt: skip
cast_to = ROWS["cast 1"][0].graph.node[0]
cast_to.attribute.append(AttributeProto(name="to", type=AttributeProto.STRING, s=b"INT32"))


@pytest.mark.parametrize("name", ROWS)
def test_an_old_node_is_answered_as_numpy_does(name: str, tmp_path: Path) -> None:
    made, oracle = ROWS[name]
    x = {"xor": BOTH}.get(
        name, FLAT if len(made.graph.input[0].type.tensor_type.shape.dim) == 2 else X
    )
    expected = oracle(x)

    found = answers(made, {"x": x}, tmp_path)

    for got, wanted in zip(
        found.values(), [expected] if len(found) == 1 else expected, strict=True
    ):
        assert got.dtype == np.asarray(wanted, got.dtype).dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


BY_ONNXRUNTIME = {
    "reshape 1": old_model(1, "Reshape", X, shape=[0, -1]),
    "reshape 5": old_model(5, "Reshape", X, (np.array([-1, 12]),)),
    "conv 1": old_model(1, "Conv", X, (real(2, 3, 3, 3), real(2)), pads=[1, 1, 1, 1]),
    "max pool 1": old_model(1, "MaxPool", X, kernel_shape=[2, 2], strides=[2, 2]),
    "pad 2": old_model(2, "Pad", X, pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"),
    "clip 6": old_model(6, "Clip", X, min=-0.5, max=0.5),
    "concat 4": old_model(4, "Concat", X, (real(1, 3, 4, 4),), axis=0),
    "tile 6": old_model(6, "Tile", X, (np.array([1, 2, 1, 1]),)),
    "softmax 1": old_model(1, "Softmax", X),
    "mean 1": old_model(1, "ReduceMean", X, axes=[2, 3]),
    "elu 6": old_model(6, "Elu", X),
    "squeeze 1": old_model(1, "Squeeze", real(2, 1, 3), axes=[1]),
    "instance norm 6": old_model(6, "InstanceNormalization", X, (C, C)),
    "removed since: affine": old_model(1, "Affine", X, alpha=2.0, beta=1.0),
    "removed since: image scaler": old_model(1, "ImageScaler", X, scale=2.0, bias=[0.1, 0.2, 0.3]),
}


@pytest.mark.parametrize("name", BY_ONNXRUNTIME)
def test_an_old_node_is_answered_as_onnxruntime_does(name: str, tmp_path: Path) -> None:
    made = BY_ONNXRUNTIME[name]
    x = real(*[dim.dim_value or 2 for dim in made.graph.input[0].type.tensor_type.shape.dim])
    (expected,) = through_onnxruntime(made, {"x": x}).values()

    found = answers(made, {"x": x}, tmp_path)["y0"]

    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_ranks_are_found_inside_of_branches(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 6]>
        old (float[2, 3, 4, 4] x, float[3] b, bool c) => (float[2, 3, 4, 4] y0)
        { y0 = If (c) <
            then_branch = then () => (float[2, 3, 4, 4] t)
                { r = Relu (x)
                  t = Add <axis = 1, broadcast = 1> (r, b) },
            else_branch = other () => (float[2, 3, 4, 4] e) { e = Neg (x) }> }"""
    )
    for is_chosen, expected in ((True, np.maximum(X, 0) + PIXELS), (False, -X)):
        (folder := tmp_path / str(is_chosen)).mkdir()
        found = answers(made, {"x": X, "b": C, "c": np.array(is_chosen)}, folder)

        np.testing.assert_allclose(found["y0"], expected, rtol=1e-5)


async def test_a_server_keeps_the_raised_file_for_onnxruntime(tmp_path: Path) -> None:
    made = old_model(6, "Add", X, (C,), axis=1, broadcast=1)

    artefact = await imported(made, tmp_path)

    kept = onnxruntime.InferenceSession(artefact / MODEL_FILE)
    np.testing.assert_allclose(kept.run(None, {"x": X})[0], X + PIXELS, rtol=1e-6)
    report = load_artefact(artefact).report
    assert (report.opset, report.batch is not None) == (6, True)


def test_what_cannot_be_raised_says_what_helps(tmp_path: Path) -> None:
    tiles = old_model(1, "Tile", FLAT, (np.array([2], np.float32), np.array([1], np.float32)))

    with pytest.raises(ModelImportError, match=r"Tile .* of operator set 1 .*opset_version=17"):
        answers(tiles, {"x": FLAT}, tmp_path)


def test_an_operand_without_a_rank_is_refused() -> None:
    made = old_model(6, "Add", X, (C,), axis=1, broadcast=1)
    made.graph.input[0].type.tensor_type.ClearField("shape")

    with pytest.raises(UnsupportedOperators, match="of operands of unknown rank of operator set 6"):
        raised(made)


@pytest.mark.parametrize("op_type", ["Reshape", "Upsample", "Add", "PRelu", "Cast", "Pad"])
def test_a_malformed_old_node_is_refused(op_type: str, tmp_path: Path) -> None:
    made = old_model(1, "Relu", X)
    odd: dict[str, Any] = {
        "shape": "a",
        "to": "b",
        "p": "c",
        "axis": 10**9,
        "broadcast": 1,
        "height_scale": "d",
    }
    made.graph.node.append(helper.make_node(op_type, [], [], **odd))

    with pytest.raises(ModelImportError):
        answers(made, {"x": X}, tmp_path)
