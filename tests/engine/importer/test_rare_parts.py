"""Rare but valid parts of an ONNX file: sparse constants, outputs listed twice, no shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from braid.core.errors import ModelImportError
from tests.engine.importer.running import Shapes, answers
from tests.engine.onnx.oracle import through_onnxruntime
from tests.models.graphs import as_model, graph, parsed, tensors

X = np.random.default_rng(7).standard_normal((2, 3)).astype(np.float32)
VALUES = np.array([1, 2, 3], np.float32)
FLAT, PAIRS = [0, 3, 5], [[0, 0], [1, 1], [2, 1]]


def sparse(
    values: Any = VALUES, indices: Any = FLAT, dims: Any = (3, 2), name: str = "w"
) -> onnx.SparseTensorProto:
    content = numpy_helper.from_array(np.asarray(values), name)
    places = numpy_helper.from_array(np.asarray(indices), f"{name}.places")
    return helper.make_sparse_tensor(content, places, dims)


def product(*constants: onnx.SparseTensorProto, x: str = "x", y: str = "y") -> onnx.GraphProto:
    made = graph(
        [helper.make_node("MatMul", [x, "w"], [y])], tensors(x=["n", 3]), tensors(**{y: ["n", 2]})
    )
    made.sparse_initializer.extend(constants)
    return made


def in_a_branch() -> onnx.ModelProto:
    then, other = product(sparse(), y="t"), product(sparse(VALUES[::-1]), y="e")
    for branch in (then, other):
        del branch.input[:]
    decide = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    made = graph([decide], tensors(x=["n", 3]), tensors(y=["n", 2]))
    made.input.extend(tensors(TensorProto.BOOL, c=[]))
    return as_model(made)


def as_a_node() -> onnx.ModelProto:
    made = product()
    made.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse()))
    return as_model(made)


def whole() -> onnx.ModelProto:
    """A model outside the lowering table."""
    made = product(sparse(), y="z")
    made.node.append(helper.make_node("Unique", ["z"], ["y"]))
    made.output[0].CopyFrom(tensors(y=["k"])[0])
    return as_model(made)


SPARSE = {
    "flat indices": as_model(product(sparse())),
    "pairs of indices": as_model(product(sparse(indices=PAIRS))),
    "in another order": as_model(product(sparse(indices=[5, 0, 3]))),
    "indices of 8 bits": as_model(product(sparse(indices=np.array(FLAT, np.int8)))),
    "no values": as_model(product(sparse(VALUES[:0], np.zeros((0, 2), np.int64)))),
    "in a node": as_a_node(),
    "served whole": whole(),
    "in branches": in_a_branch(),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_constants_are_served_dense(name: str, tmp_path: Path) -> None:
    made = SPARSE[name]
    inputs = {"x": X} | ({"c": np.array(True)} if name == "in branches" else {})

    found = answers(made, inputs, tmp_path)["y"]

    np.testing.assert_allclose(found, through_onnxruntime(made, inputs)["y"], rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int8, np.uint8, np.bool_])
def test_sparse_constants_have_any_type(dtype: Any, tmp_path: Path) -> None:
    made = product(sparse(np.ones(3, dtype)))
    made.node.append(helper.make_node("Cast", ["w"], ["z"], to=TensorProto.FLOAT))
    made.node[0].input[1] = "z"
    made.node.insert(0, made.node.pop())
    expected = X @ np.array([[1, 0], [0, 1], [0, 1]], np.float32)

    found = answers(as_model(made), {"x": X}, tmp_path)["y"]

    np.testing.assert_allclose(found, expected, rtol=1e-5)


HOSTILE = {
    "beyond the end": (sparse(indices=[0, 1, 6]), "outside its shape"),
    "before the beginning": (sparse(indices=[-1, 0, 1]), "outside its shape"),
    "beyond a row": (sparse(indices=[[0, 0], [0, 2], [1, 0]]), "outside its shape"),
    "twice": (sparse(indices=[3, 0, 3]), "two values at one index"),
    "three of two dimensions": (sparse(indices=[[0] * 3] * 3), r"\[values, dimensions\] is valid"),
    "fewer": (sparse(indices=[0, 1]), "for 3 values"),
    "fractions": (sparse(indices=np.array([0, 1, 2], np.float32)), "integer indices"),
    "a table of values": (sparse(VALUES.reshape(1, 3)), "a list of values"),
    "one number": (sparse(np.float32(1), np.int64(0)), "a list of values"),
    "no dimensions": (sparse(dims=()), "no sparse tensor has"),
    "a negative extent": (sparse(dims=(-3, -2)), "no sparse tensor has"),
    "exabytes": (sparse(dims=(1 << 31, 1 << 31)), "take more than 2147483648 bytes"),
    "texts": (sparse(np.array(["a", "b", "c"], object)), "STRING; save the model with it dense"),
    "no values of a shape beyond 2^63": (
        sparse(VALUES[:0], np.zeros((0, 2), np.int64), (1 << 40, 1 << 40, 0)),
        "for 0 values in 3 dimensions|outside its shape",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sparse_constants_are_refused(name: str, tmp_path: Path) -> None:
    constant, words = HOSTILE[name]

    with pytest.raises(ModelImportError, match=words):
        answers(as_model(product(constant)), {"x": X}, tmp_path)


def test_sparse_constants_are_bounded_together(tmp_path: Path) -> None:
    much = [sparse(VALUES[:0], np.zeros(0, np.int64), (1 << 28,), name) for name in "abw"]

    with pytest.raises(ModelImportError, match="take more than 2147483648 bytes"):
        answers(as_model(product(*much)), {"x": X}, tmp_path)


@pytest.mark.parametrize("last", ["Relu", "Unique"])
def test_an_output_listed_twice_is_answered_once(last: str, tmp_path: Path) -> None:
    text = f"(float[n, 3] x) => (float[] y, float[] z) {{ y = {last}(x)  z = Neg(y) }}"
    made = parsed(text)
    made.graph.output.append(made.graph.output[0])
    expected = through_onnxruntime(made, {"x": X})

    found = answers(made, {"x": X}, tmp_path)

    assert list(found) == ["y", "z"]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def without_a_shape(*op_types: str) -> onnx.ModelProto:
    steps = [f"v{i + 1} = {op_type}({f'v{i}' if i else 'x'})" for i, op_type in enumerate(op_types)]
    return parsed(f"(float[] x) => (float[] v{len(steps)}) {{ {' '.join(steps)} }}")


@pytest.mark.parametrize(
    ("op_types", "shapes", "x"),
    [
        (("Relu", "Exp"), {"x": (1, 4)}, X),
        (("Relu", "Exp"), {"x": (1, 4, 5)}, X.reshape(2, 1, 3)),
        (("Relu", "Unique"), {"x": (2,)}, X[0]),
        (("Relu",), {"x": ()}, np.float32(-1)),
    ],
)
def test_an_input_without_a_shape_has_the_rank_given(
    op_types: tuple[str, ...], shapes: Shapes, x: Any, tmp_path: Path
) -> None:
    made = without_a_shape(*op_types)
    (expected,) = through_onnxruntime(made, {"x": np.asarray(x)}).values()

    (found,) = answers(made, {"x": x}, tmp_path, shapes).values()

    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_input_without_a_shape_is_told_what_helps(tmp_path: Path) -> None:
    made = without_a_shape("Relu")

    with pytest.raises(ModelImportError, match="--input-shape x=1,4") as refusal:
        answers(made, {"x": X}, tmp_path)

    assert "does not declare a shape" in str(refusal.value)


AUDIO = np.random.default_rng(3).standard_normal(1323).astype(np.float32)


def over_samples(frame: int, frames: int) -> onnx.ModelProto:
    """Frames of a signal of one open axis, and a convolution over some of them."""
    return parsed(
        """(float[samples] audio) => (float[] y)
        { rows = Reshape(audio, frame)  image = Unsqueeze(rows, axes)  y = Conv(image, w) }""",
        {"frame": [-1, frame], "axes": [0, 1], "w": np.ones((1, 1, frames, frame), np.float32)},
    )


@pytest.mark.parametrize(("frame", "frames"), [(160, 1), (147, 1), (160, 3), (512, 1)])
def test_a_network_over_samples_needs_no_help(frame: int, frames: int, tmp_path: Path) -> None:
    made, audio = over_samples(frame, frames), AUDIO[: 1323 // frame * frame]

    found = answers(made, {"audio": audio}, tmp_path)["y"]

    expected = through_onnxruntime(made, {"audio": audio})["y"]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_network_over_samples_says_what_helps_and_it_does(tmp_path: Path) -> None:
    made = over_samples(441, 3)
    with pytest.raises(ModelImportError, match="--input-shape audio=SAMPLES"):
        answers(made, {"audio": AUDIO}, tmp_path)
    np.savez(tmp_path / "samples.npz", audio=AUDIO[np.newaxis])
    expected = AUDIO.sum().reshape(1, 1, 1, 1)

    for help_given in ({"shapes": {"audio": (1323,)}}, {"samples": tmp_path / "samples.npz"}):
        (folder := tmp_path / next(iter(help_given))).mkdir()
        found = answers(made, {"audio": AUDIO}, folder, **help_given)["y"]
        np.testing.assert_allclose(found, expected, atol=1e-3)
