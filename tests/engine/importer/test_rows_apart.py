"""Models whose rows would change each other's answers in a batch are served unbatched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic

from braid.core.errors import UnsupportedOperators
from braid.engine.importer.sandbox.pipeline import Study, study_batch
from braid.engine.importer.upload.batch_axis import without_batch_symbol
from braid.engine.importer.upload.whole_model import as_one_unit
from braid.engine.importer.verification.example_inputs import find_example
from braid.engine.importer.verification.reference import open_reference
from braid.engine.importer.verification.verify import Subject
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.onnx.structure import multiplies_integers
from braid.engine.passes import run_passes
from tests.models.graphs import as_model, graph, model, own_function, tensors

MEMORY = 1 << 30
RNG = np.random.default_rng(0)


def studied(
    made: onnx.ModelProto, folder: Path, *, whole: bool = False, batchable: bool = False
) -> Study:
    """How an import would serve a model, lowered or as one unit."""
    upload = folder / "upload"
    upload.write_bytes(made.SerializeToString())
    reference = open_reference(upload, on_integers=multiplies_integers(made))
    if whole:
        template, weights, _ = as_one_unit(made, (), lambda: reference, {})
    else:
        template, weights = run_passes(*lower(prepare(made)))
    plain = without_batch_symbol(template)
    example = find_example(plain, weights, reference, MEMORY, {})
    return study_batch(Subject(plain, weights, example, MEMORY, batchable=batchable), reference)


def contributed(made: onnx.ModelProto) -> onnx.ModelProto:
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def real(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


#   ids ──> Gather ──> Transpose ──> LSTM ──> Squeeze ──> Transpose ──> y
def tagger(folder: Path, padding: int) -> onnx.ModelProto:
    """A recurrent network in 8 bits over a vocabulary of 40, some rows of which are zeros."""
    words = real(40, 16)
    words[:padding] = 0
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["all"], hidden_size=24),
        helper.make_node("Squeeze", ["all", "one"], ["last"]),
        helper.make_node("Transpose", ["last"], ["y"], perm=[1, 0, 2]),
    ]
    weights = {"words": words, "w": real(1, 96, 16), "r": real(1, 96, 24), "one": np.array([1])}
    inputs = tensors(TensorProto.INT64, ids=["n", 6])
    made = as_model(graph(nodes, inputs, tensors(y=["n", 6, 24]), weights))
    onnx.save(made, folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "quantised.onnx")
    return onnx.load(folder / "quantised.onnx")


@pytest.mark.parametrize("padding", [0, 2])
def test_a_recurrent_layer_of_dynamic_ranges(padding: int, tmp_path: Path) -> None:
    study = studied(tagger(tmp_path, padding), tmp_path, whole=True)

    assert study.batch is None
    assert "DynamicQuantizeLSTM" in study.rows
    assert "--batchable" in study.warnings[-1]


def test_the_same_layer_without_ranges_is_batched(tmp_path: Path) -> None:
    tagger(tmp_path, 2)

    study = studied(onnx.load(tmp_path / "plain.onnx"), tmp_path, whole=True)

    assert study.batch is not None


def rare(op_type: str, *operands: Any, shape: Sequence[int | str], **attributes: Any) -> Any:
    """An operator that has no lowering in this form, on x and constants; None: no operand."""
    names = [f"c{at}" if array is not None else "" for at, array in enumerate(operands)]
    constants = dict(zip(names, operands, strict=True))
    constants.pop("", None)
    made = model([helper.make_node(op_type, ["x", *names], ["y"], **attributes)], constants, shape)
    made.opset_import[0].version, made.ir_version = 19, 9
    return made


def layer(op_type: str, gates: int, *others: Any, **attributes: Any) -> onnx.ModelProto:
    """A recurrent layer over five steps, in the middle of a model whose rows come first."""
    constants = {"w": real(1, gates * 8, 4), "r": real(1, gates * 8, 8)}
    names = [f"c{at}" if array is not None else "" for at, array in enumerate(others)]
    constants |= {n: array for n, array in zip(names, others, strict=True) if n}
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(
            op_type, ["steps", "w", "r", *names], ["all"], hidden_size=8, **attributes
        ),
        helper.make_node("Transpose", ["all"], ["y"], perm=[2, 0, 1, 3]),
    ]
    return model(nodes, constants, ["n", 5, 4])


def deformed() -> onnx.ModelProto:
    """A kernel of 3 by 3 whose places a convolution moves."""
    nodes = [
        helper.make_node("Conv", ["x", "moves"], ["offset"], pads=[1] * 4),
        helper.make_node("DeformConv", ["x", "w", "offset"], ["y"], pads=[1] * 4),
    ]
    constants = {"moves": 0.1 * real(18, 3, 3, 3), "w": real(4, 3, 3, 3)}
    made = model(nodes, constants, ["n", 3, 6, 7])
    made.opset_import[0].version, made.ir_version = 19, 9
    return made


IMAGE = ("n", 3, 6, 7)
RARE: Mapping[str, onnx.ModelProto] = {
    "deformable kernel": deformed(),
    "norms of windows": rare("LpPool", shape=IMAGE, kernel_shape=[2, 2], p=3),
    "norms of images": rare("GlobalLpPool", shape=IMAGE),
    "determinants": rare("Det", shape=["n", 2, 3, 3]),
    "cells that look at gates": layer("LSTM", 4, None, None, None, None, real(1, 24)),
    "bounded cells": layer("LSTM", 4, clip=0.5),
    "reset before": layer("GRU", 3),
    "far padding": rare(
        "Conv", real(2, 3, 2, 2), shape=IMAGE, pads=[0, 90_000] * 2, dilations=[1, 90_000]
    ),
    "windows beyond": rare(
        "MaxPool", shape=IMAGE, kernel_shape=[900] * 2, pads=[899] * 4, strides=[300] * 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RARE)
def test_rows_of_rare_operators_share_a_batch_where_onnxruntime_runs_them(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOperators, match=r"^the model "):
        lower(prepare(RARE[name]))

    study = studied(RARE[name], tmp_path, whole=True)

    assert (study.batch is None) is (name == "windows beyond")


QUANTISED = [
    helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
]
BY_HAND = [
    helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
    helper.make_node("Div", ["most", "steps"], ["scale"]),
    helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
]
STEPS = {"steps": np.float32(255), "yes": np.array(True), "trips": np.array(2)}


def body(name: str, reads: Sequence[str] = (), *, loop: bool = False) -> onnx.GraphProto:
    """QUANTISED on the value that a subgraph reads, or on x outside of it."""
    value = reads[-1] if reads else "x"
    nodes = [
        helper.make_node("DynamicQuantizeLinear", [value], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], [name]),
    ]
    outputs = tensors(**{name: None})
    inputs = tensors(**{value: None}) if reads else []
    if loop:
        nodes.insert(0, helper.make_node("Identity", ["go"], ["on"]))
        inputs = [*tensors(TensorProto.INT64, i=[]), *tensors(TensorProto.BOOL, go=[]), *inputs]
        outputs = [*tensors(TensorProto.BOOL, on=[]), *outputs]
    return graph(nodes, inputs, outputs)


def in_function() -> onnx.ModelProto:
    called = own_function("squeeze", ["x"], ["y"], QUANTISED)
    return model([helper.make_node("squeeze", ["x"], ["y"], domain="own")], functions=[called])


WITH_RANGES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "at the top": lambda: model(QUANTISED),
    "by hand": lambda: model(BY_HAND, STEPS),
    "in a branch": lambda: model(
        [helper.make_node("If", ["yes"], ["y"], then_branch=body("a"), else_branch=body("b"))],
        STEPS,
    ),
    "in a loop": lambda: model(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body("w", ["v"], loop=True))],
        STEPS,
    ),
    "in a scan": lambda: model(
        [helper.make_node("Scan", ["x"], ["y"], num_scan_inputs=1, body=body("w", ["v"]))]
    ),
    "in a function": in_function,
    "of a matrix product": lambda: contributed(
        model(
            [
                helper.make_node(
                    "DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], domain="com.microsoft"
                )
            ],
            {"w": np.ones((4, 4), np.uint8), "s": np.float32(0.1), "z": np.uint8(0)},
        )
    ),
}


@pytest.mark.parametrize("name", WITH_RANGES)
def test_ranges_of_models_served_whole(name: str, tmp_path: Path) -> None:
    study = studied(WITH_RANGES[name](), tmp_path, whole=True)

    assert study.batch is None
    assert study.rows.startswith("operator ")


def test_ranges_in_a_branch_of_a_lowered_model(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["width"]),
        helper.make_node("Greater", ["width", "none"], ["any"]),
        helper.make_node("If", ["any"], ["y"], then_branch=body("a"), else_branch=body("b")),
    ]

    study = studied(model(nodes, {"none": np.array(0), "one": np.array(1)}), tmp_path)

    assert study.batch is None
    assert "ReduceMax" in study.rows


def rounded_by_hand(axes: Sequence[int] | None) -> onnx.ModelProto:
    """Rows of a table, rounded to 8 bits of the largest element: of all rows, or along axes."""
    reduced: dict[str, Any] = {} if axes is None else {"axes": axes}
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["rows"]),
        helper.make_node("Abs", ["rows"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["most"], keepdims=1, **reduced),
        helper.make_node("Div", ["most", "steps"], ["step"]),
        helper.make_node("Div", ["rows", "step"], ["quotients"]),
        helper.make_node("Round", ["quotients"], ["whole"]),
        helper.make_node("Mul", ["whole", "step"], ["y"]),
    ]
    weights = {"words": real(40, 16), "steps": np.float32(127)}
    inputs, outputs = tensors(TensorProto.INT64, ids=["n", 6]), tensors(y=["n", 6, 16])
    return as_model(graph(nodes, inputs, outputs, weights))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("axes", "batched"), [(None, False), ([0], False), ([1, 2], True)])
def test_ranges_without_an_operator_of_their_own(
    axes: Sequence[int] | None, batched: bool, whole: bool, tmp_path: Path
) -> None:
    study = studied(rounded_by_hand(axes), tmp_path, whole=whole)

    assert (study.batch is not None) is batched


def test_what_rows_share_shows_although_integers_hide_it(tmp_path: Path) -> None:
    # A hundredth of the mean of the batch is less than a step of 8 bits where rows are alike.
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Mul", ["m", "little"], ["shared"]),
        helper.make_node("Add", ["x", "shared"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "step"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step"], ["y"]),
    ]
    constants = {"little": np.float32(0.01), "step": np.float32(0.05)}

    study = studied(model(nodes, constants, shape=["n", 40]), tmp_path)

    assert study.batch is None
    assert "served unbatched" in study.warnings[-1]


def test_a_quantised_model_of_single_rows_is_batched(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "step"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "step"], ["y"]),
    ]
    constants = {"step": np.float32(0.05), "w": real(40, 30)}

    assert studied(model(nodes, constants, shape=["n", 40]), tmp_path).batch is not None


def tables(**rows: int) -> onnx.ModelProto:
    """The sum of rows of tables, one looked up by each input."""
    nodes = [helper.make_node("Gather", [f"{n}_rows", n], [f"{n}_row"]) for n in rows]
    nodes.append(helper.make_node("Sum", [f"{name}_row" for name in rows], ["y"]))
    weights = {f"{name}_rows": real(count, 8) for name, count in rows.items()}
    inputs = tensors(TensorProto.INT64, **{name: ["n", 5] for name in rows})
    return as_model(graph(nodes, inputs, tensors(y=None), weights))


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        ({"ids": 300}, [{"ids": 256}, {"ids": 2}]),
        ({"ids": 40}, [{"ids": 32}, {"ids": 2}]),
        ({"ids": 250}, [{"ids": 128}, {"ids": 2}]),  # most draws from 256 would pass
        ({"ids": 3}, [{"ids": 2}]),
        ({"ids": 1}, [{"ids": 1}]),
        (
            {"ids": 300, "kinds": 2},
            [{"ids": 256, "kinds": 2}, {"ids": 2, "kinds": 2}],
        ),
        (
            {"ids": 300, "places": 6},
            [
                {"ids": 256, "places": 4},
                {"ids": 256, "places": 2},
                {"ids": 2, "places": 4},
                {"ids": 2, "places": 2},
            ],
        ),
    ],
)
def test_each_input_gets_the_largest_range_that_the_model_takes(
    rows: Mapping[str, int], ranges: list[Mapping[str, int]], tmp_path: Path
) -> None:
    made = tables(**rows)
    (tmp_path / "upload").write_bytes(made.SerializeToString())
    template, weights = run_passes(*lower(made))

    found = find_example(template, weights, open_reference(tmp_path / "upload"), MEMORY, {})

    assert list(found.integers) == ranges
    drawn = found.draw(3, 0)
    assert all(int(drawn[name].max()) < limit for name, limit in ranges[0].items())


def test_divisors_are_drawn_without_zeros(tmp_path: Path) -> None:
    node = helper.make_node("Div", ["a", "b"], ["y"])
    row = ["n", 9]
    inputs, outputs = tensors(TensorProto.INT64, a=row, b=row), tensors(TensorProto.INT64, y=row)
    made = as_model(graph([node], inputs, outputs))

    study = studied(made, tmp_path)

    assert study.batch is not None
    assert study.subject.example.least == 1
    assert bool(torch.all(study.subject.example.draw(50, 0)["b"] > 0))
