"""Models whose rows would change each other's answers in a batch are served unbatched."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic

from braid.core.errors import UnsupportedOperators
from braid.engine.importer.verification.example_inputs import Trials, find_example
from braid.engine.importer.verification.reference import open_reference
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.passes import run_passes
from tests.engine.importer.running import MEMORY, studied
from tests.models.graphs import from_x, own_function, parsed

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


#   ids ──> Gather ──> Transpose ──> LSTM ──> Squeeze ──> Transpose ──> y
def tagger(folder: Path, padding: int) -> onnx.ModelProto:
    """A recurrent network in 8 bits over a vocabulary of 40, some rows of which are zeros."""
    words = real(40, 16)
    words[:padding] = 0
    text = """(int64[n, 6] ids) => (float[n, 6, 24] y) {
      rows = Gather(words, ids)  steps = Transpose<perm=[1, 0, 2]>(rows)
      all = LSTM<hidden_size=24>(steps, w, r)  last = Squeeze(all, one)
      y = Transpose<perm=[1, 0, 2]>(last) }"""
    weights = {"words": words, "w": real(1, 96, 16), "r": real(1, 96, 24), "one": [1]}
    made = parsed(text, weights)
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


LAYER = "steps = Transpose<perm=[1, 0, 2]>(x)  all = {}  y = Transpose<perm=[2, 0, 1, 3]>(all)"
ROWS, IMAGES = "n, 5, 4", "n, 3, 6, 7"
RARE: Mapping[str, tuple[str, str]] = {
    "deformable kernel": (
        IMAGES,
        """offset = Conv<pads=[1, 1, 1, 1]>(x, moves)
        y = DeformConv<pads=[1, 1, 1, 1]>(x, deformed, offset)""",
    ),
    "norms of windows": (IMAGES, "y = LpPool<kernel_shape=[2, 2], p=3>(x)"),
    "norms of images": (IMAGES, "y = GlobalLpPool(x)"),
    "determinants": ("n, 2, 3, 3", "y = Det(x)"),
    "cells that look at gates": (
        ROWS, LAYER.format("LSTM<hidden_size=8>(steps, w4, r4, , , , , peepholes)")
    ),
    "bounded cells": (ROWS, LAYER.format("LSTM<hidden_size=8, clip=0.5>(steps, w4, r4)")),
    "reset before": (ROWS, LAYER.format("GRU<hidden_size=8>(steps, w3, r3)")),
    "far padding": (
        IMAGES, "y = Conv<pads=[0, 9000, 0, 9000], dilations=[1, 9000]>(x, kernel)"
    ),
    "windows beyond": (
        IMAGES,
        """y = MaxPool<kernel_shape=[900, 900], pads=[899, 899, 899, 899], strides=[300, 300]>
        (x)""",
    ),
}  # fmt: skip
"""Shape of x, and operators that have no lowering in this form."""
CONSTANTS: Mapping[str, Any] = {
    "moves": 0.1 * real(18, 3, 3, 3),
    "deformed": real(4, 3, 3, 3),
    "kernel": real(2, 3, 2, 2),
    "peepholes": real(1, 24),
    **{f"w{gates}": real(1, gates * 8, 4) for gates in (3, 4)},
    **{f"r{gates}": real(1, gates * 8, 8) for gates in (3, 4)},
}


@pytest.mark.parametrize("name", RARE)
def test_rows_of_rare_operators_share_a_batch_where_onnxruntime_runs_them(
    name: str, tmp_path: Path
) -> None:
    shape, body = RARE[name]
    read = {name: array for name, array in CONSTANTS.items() if name in re.findall(r"\w+", body)}
    made = parsed(f"(float[{shape}] x) => (float[] y) {{ {body} }}", read, opset=19)
    with pytest.raises(UnsupportedOperators, match=r"^the model "):
        lower(prepare(made))

    study = studied(made, tmp_path, whole=True)

    assert (study.batch is None) is (name == "windows beyond")


def quantised(x: str, y: str) -> str:
    """Nodes that round ``x`` to 8 bits of its own range."""
    return f"q, s, z = DynamicQuantizeLinear({x})  {y} = DequantizeLinear(q, s, z)"


BRANCHES = f"""then_branch = yes () => (float[] a) {{ {quantised("x", "a")} }},
  else_branch = no () => (float[] b) {{ {quantised("x", "b")} }}"""


def in_function() -> onnx.ModelProto:
    function = own_function("Squeeze (x) => (y)", quantised("x", "y"))
    return from_x("y = own.Squeeze(x)", functions=function)


WITH_RANGES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "at the top": lambda: from_x(quantised("x", "y")),
    "by hand": lambda: from_x(
        """most = ReduceMax<keepdims=0>(x)  scale = Div(most, steps)
        q = QuantizeLinear(x, scale)  y = DequantizeLinear(q, scale)""",
        steps=np.float32(255),
    ),
    "in a branch": lambda: from_x(f"y = If<{BRANCHES}>(yes)", yes=True),
    "in a loop": lambda: from_x(
        f"""y = Loop<body = turn (int64 i, bool go, float[] v) => (bool on, float[] w)
          {{ on = Identity(go)  {quantised("v", "w")} }}>(trips, , x)""",
        trips=2,
    ),
    "in a scan": lambda: from_x(
        f"""y = Scan<num_scan_inputs=1, body = step (float[] v) => (float[] w)
          {{ {quantised("v", "w")} }}>(x)"""
    ),
    "in a function": in_function,
    "of a matrix product": lambda: from_x(
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, s, z)",
        w=np.ones((4, 4), np.uint8),
        s=np.float32(0.1),
        z=np.uint8(0),
    ),
}


@pytest.mark.parametrize("name", WITH_RANGES)
def test_ranges_of_models_served_whole(name: str, tmp_path: Path) -> None:
    study = studied(WITH_RANGES[name](), tmp_path, whole=True)

    assert study.batch is None
    assert study.rows.startswith("operator ")


def test_ranges_in_a_branch_of_a_lowered_model(tmp_path: Path) -> None:
    made = from_x(
        f"""shape = Shape(x)  width = Gather(shape, one)  any = Greater(width, none)
        y = If<{BRANCHES}>(any)""",
        none=0,
        one=1,
    )

    study = studied(made, tmp_path)

    assert study.batch is None
    assert "ReduceMax" in study.rows


def rounded_by_hand(axes: Sequence[int] | None) -> onnx.ModelProto:
    """Rows of a table, rounded to 8 bits of the largest element: of all rows, or along axes."""
    along = "" if axes is None else f", axes={list(axes)}"
    return parsed(
        f"""(int64[n, 6] ids) => (float[n, 6, 16] y) {{
          rows = Gather(words, ids)  sizes = Abs(rows)  most = ReduceMax<keepdims=1{along}>(sizes)
          step = Div(most, steps)  quotients = Div(rows, step)  whole = Round(quotients)
          y = Mul(whole, step) }}""",
        {"words": real(40, 16), "steps": np.float32(127)},
    )


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("axes", "batched"), [(None, False), ([0], False), ([1, 2], True)])
def test_ranges_without_an_operator_of_their_own(
    axes: Sequence[int] | None, batched: bool, whole: bool, tmp_path: Path
) -> None:
    study = studied(rounded_by_hand(axes), tmp_path, whole=whole)

    assert (study.batch is not None) is batched


def test_what_rows_share_shows_although_integers_hide_it(tmp_path: Path) -> None:
    # A hundredth of the mean of the batch is less than a step of 8 bits where rows are alike.
    made = from_x(
        """m = ReduceMean<axes=[0], keepdims=1>(x)  shared = Mul(m, little)  sum = Add(x, shared)
        q = QuantizeLinear(sum, step)  y = DequantizeLinear(q, step)""",
        "n, 40",
        little=np.float32(0.01),
        step=np.float32(0.05),
    )

    study = studied(made, tmp_path)

    assert study.batch is None
    assert "served unbatched" in study.warnings[-1]


def test_a_quantised_model_of_single_rows_is_batched(tmp_path: Path) -> None:
    made = from_x(
        """q = QuantizeLinear(x, step)  d = DequantizeLinear(q, step)  p = MatMul(d, w)
        r = QuantizeLinear(p, step)  y = DequantizeLinear(r, step)""",
        "n, 40",
        step=np.float32(0.05),
        w=real(40, 30),
    )

    assert studied(made, tmp_path).batch is not None


def tables(**rows: int) -> onnx.ModelProto:
    """The sum of rows of tables, one looked up by each input."""
    inputs = ", ".join(f"int64[n, 5] {name}" for name in rows)
    looked_up = " ".join(f"{name}_row = Gather({name}_rows, {name})" for name in rows)
    summed = ", ".join(f"{name}_row" for name in rows)
    weights = {f"{name}_rows": real(count, 8) for name, count in rows.items()}
    return parsed(f"({inputs}) => (float[] y) {{ {looked_up}  y = Sum({summed}) }}", weights)


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        ({"ids": 300}, [{"ids": 256}, {"ids": 2}]),
        ({"ids": 40}, [{"ids": 32}, {"ids": 2}]),
        ({"ids": 250}, [{"ids": 128}, {"ids": 2}]),  # most draws from 256 would pass
        ({"ids": 3}, [{"ids": 2}]),
        ({"ids": 1}, [{"ids": 1}]),
        ({"ids": 300, "kinds": 2}, [{"ids": 256, "kinds": 2}, {"ids": 2, "kinds": 2}]),
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

    found = find_example(Trials(template, weights, open_reference(tmp_path / "upload"), MEMORY), {})

    assert list(found.integers) == ranges
    drawn = found.draw(3, 0)
    assert all(int(drawn[name].max()) < limit for name, limit in ranges[0].items())


def test_divisors_are_drawn_without_zeros(tmp_path: Path) -> None:
    made = parsed("(int64[n, 9] a, int64[n, 9] b) => (int64[n, 9] y) { y = Div(a, b) }")

    study = studied(made, tmp_path)

    assert study.batch is not None
    assert study.subject.example.least == 1
    assert bool(torch.all(study.subject.example.draw(50, 0)["b"] > 0))
