"""Convolutions over one axis as convolutions on images of one row."""

from __future__ import annotations

import pytest

from braid.core.graph import Literal, Operator
from braid.engine.passes.image_rows import sequences_to_images
from tests.engine.passes.drawing import Drawing, kinds, rewritten


def window(**changed: Literal) -> dict[str, Literal]:
    usual: dict[str, Literal] = {
        "stride": [1], "padding": [1], "dilation": [1], "transposed": False,
        "output_padding": [0], "groups": 1,
    }  # fmt: skip
    return {**usual, **changed}


def sequence() -> Drawing:
    return Drawing(x=("n", 4, 12))


def check(drawing: Drawing, *outputs: str) -> list[str]:
    return kinds(rewritten(drawing, sequences_to_images, *outputs))


@pytest.mark.parametrize(
    ("weight", "changed"),
    [
        ((6, 4, 3), {}),
        ((6, 4, 3), {"stride": [2], "dilation": [2], "padding": [2]}),
        ((8, 1, 5), {"groups": 4, "padding": [2]}),
        ((6, 4, 1), {"stride": [], "padding": [], "dilation": []}),
        ((4, 6, 4), {"transposed": True, "stride": [3], "output_padding": [1]}),
        ((4, 3, 4), {"transposed": True, "stride": [2], "groups": 2}),
    ],
)
def test_a_convolution_of_every_window(
    weight: tuple[int, ...], changed: dict[str, Literal]
) -> None:
    drawing = sequence()
    y = drawing.op("aten.convolution", "x", drawing.constant(*weight), **window(**changed))

    assert check(drawing, y) == ["unsqueeze", "convolution", "squeeze"]


#   x ──> conv ──> norm ──> relu ──> conv ──> + ──> max pool ──> x 0.5..1.5 of each channel ──> y
#   └─────────────────────────────────────────┘
def test_what_follows_runs_on_images_and_they_begin_and_end_once() -> None:
    drawing = sequence()
    first = drawing.op("aten.convolution", "x", drawing.constant(4, 4, 3), **window())
    normed = drawing.op("aten.relu", drawing.norm(first, 4))
    second = drawing.op(
        "aten.convolution", normed, drawing.constant(4, 4, 3), drawing.constant(4), **window()
    )
    summed = drawing.op("aten.add", "x", second)
    pooled = drawing.op("braid.max_pool", summed, kernel=[3], stride=[2], pads=[0, 1], dilation=[1])
    y = drawing.op("aten.mul", drawing.constant(4, 1), pooled)

    assert check(drawing, y) == [
        *("unsqueeze", "convolution", "batch_norm", "relu", "convolution"),
        *("add", "max_pool", "mul", "squeeze"),
    ]


def test_parts_are_joined_along_their_channels_as_images() -> None:
    drawing = sequence()
    parts = [
        drawing.op("aten.convolution", "x", drawing.constant(3, 4, 3), **window()),
        drawing.op("aten.convolution", "x", drawing.constant(5, 4, 3), **window()),
    ]

    y = drawing.op("aten.cat", *parts, dim=-2)

    assert check(drawing, y) == ["unsqueeze", "convolution", "convolution", "cat", "squeeze"]


def test_what_differs_on_images_reads_the_sequence() -> None:
    drawing = sequence()
    made = drawing.op("aten.convolution", "x", drawing.constant(4, 4, 3), **window())
    turned = drawing.op("aten.permute", made, dims=[0, 2, 1])
    joined = drawing.op("aten.cat", made, made, dim=2)

    after = check(drawing, turned, joined)

    assert sorted(after) == sorted(["unsqueeze", "convolution", "squeeze", "permute", "cat"])


def test_a_value_that_is_read_both_ways_is_made_once() -> None:
    drawing = sequence()
    made = drawing.op("aten.convolution", "x", drawing.constant(4, 4, 3), **window())
    active = drawing.op("aten.tanh", made)

    assert check(drawing, made, active) == [
        *("unsqueeze", "convolution", "squeeze", "tanh", "squeeze")
    ]


def test_images_stay_as_they_are() -> None:
    drawing = Drawing(x=("n", 3, 6, 6))
    y = drawing.conv("x", 3, 4)

    assert check(drawing, y) == ["convolution"]


def test_causal_convolutions_are_padded_as_images() -> None:
    drawing = sequence()
    y = "x"
    for _ in range(2):
        y = drawing.op("aten.convolution", y, drawing.constant(4, 4, 3), **window(padding=[0]))
        y = drawing.op("braid.pad", y, pads=[2, 0], mode="constant", value=0.0, axes=[2])

    assert check(drawing, y) == ["unsqueeze", *["convolution", "pad"] * 2, "squeeze"]


def test_gates_of_halves_stay_images() -> None:
    drawing = sequence()
    y = drawing.op("aten.convolution", "x", drawing.constant(8, 4, 3), **window())
    drawing.operators.append(
        Operator("halves", "braid.split", (y,), ("a", "b"), {"axis": 1, "parts": 2})
    )
    y = drawing.op("aten.mul", drawing.op("aten.tanh", "a"), drawing.op("aten.sigmoid", "b"))
    y = drawing.op("aten.convolution", y, drawing.constant(4, 4, 3), **window())

    kept = [*("unsqueeze", "convolution", "split", "tanh", "sigmoid", "mul", "convolution")]
    assert check(drawing, y) == [*kept, "squeeze"]
