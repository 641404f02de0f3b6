"""Convolutions over one axis as ones on images of one row; of concatenations, part by part."""

import pytest

from braid.core.graph import Literal, Operator
from braid.engine.passes.fusion import convolve_parts, fuse_epilogues
from braid.engine.passes.image_rows import sequences_to_images
from tests.engine.passes.drawing import drawn, kinds, left, rewritten

SHAPE = ("n", 4, 12)


def convolved(x: str, *weight: int, bias: str = "", **changed: Literal) -> str:
    window: dict[str, Literal] = {
        "stride": [1], "padding": [1], "dilation": [1], "transposed": False,
        "output_padding": [0], "groups": 1, **changed,
    }  # fmt: skip
    attributes = ", ".join(f"{name}={value}" for name, value in window.items())
    return f"convolution({x}, const{weight}{bias}, {attributes})"


@pytest.mark.parametrize(
    "text",
    [
        convolved("x", 6, 4, 3),
        convolved("x", 6, 4, 3, stride=[2], dilation=[2], padding=[2]),
        convolved("x", 8, 1, 5, groups=4, padding=[2]),
        convolved("x", 6, 4, 1, stride=[], padding=[], dilation=[]),
        convolved("x", 4, 6, 4, transposed=True, stride=[3], output_padding=[1]),
        convolved("x", 4, 3, 4, transposed=True, stride=[2], groups=2),
    ],
)
def test_a_convolution_of_every_window(text: str) -> None:
    assert left(sequences_to_images, text, x=SHAPE) == ["unsqueeze", "convolution", "squeeze"]


SAME = convolved("x", 4, 4, 3)
CAUSAL = "pad({}, pads=[2, 0], mode='constant', value=0.0, axes=[2])"


def causal(x: str) -> str:
    return CAUSAL.format(convolved(x, 4, 4, 3, padding=[0]))


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        # all that follows runs on images: a norm, a sum, a pool, numbers of each channel
        (
            f"second = {convolved(f'relu(norm({SAME}, 4))', 4, 4, 3, bias=', const(4)')};"
            "pool = max_pool(add(x, second), kernel=[3], stride=[2], pads=[0, 1], dilation=[1]);"
            "mul(const(4, 1), pool)",
            ["convolution", "batch_norm", "relu", "convolution", "add", "max_pool", "mul"],
        ),
        # parts are joined along their channels
        (
            f"cat({convolved('x', 3, 4, 3)}, {convolved('x', 5, 4, 3)}, dim=-2)",
            ["convolution", "convolution", "cat"],
        ),
        # a value that is read both ways is made once
        (f"made = {SAME}; made, tanh(made)", ["convolution", "squeeze", "tanh"]),
        (causal(causal("x")), ["convolution", "pad"] * 2),
    ],
)
def test_what_follows_runs_on_images(text: str, inner: list[str]) -> None:
    assert left(sequences_to_images, text, x=SHAPE) == ["unsqueeze", *inner, "squeeze"]


def test_what_differs_on_images_reads_the_sequence() -> None:
    text = f"made = {SAME}; permute(made, dims=[0, 2, 1]), cat(made, made, dim=2)"

    after = left(sequences_to_images, text, x=SHAPE)

    assert sorted(after) == sorted(["unsqueeze", "convolution", "squeeze", "permute", "cat"])


def test_images_stay_as_they_are() -> None:
    assert left(sequences_to_images, "conv(x, 3, 4)", x=("n", 3, 6, 6)) == ["convolution"]


def test_gates_of_halves_stay_images() -> None:
    drawing, (y,) = drawn(convolved("x", 8, 4, 3), x=SHAPE)
    drawing.operators.append(
        Operator("halves", "braid.split", (y,), ("a", "b"), {"axis": 1, "parts": 2})
    )
    y = drawing.op("aten.mul", drawing.op("aten.tanh", "a"), drawing.op("aten.sigmoid", "b"))
    weight = drawing.constant(4, 4, 3)
    y = drawing.op("aten.convolution", y, weight, **drawing.operators[0].attributes)

    kept = [*("unsqueeze", "convolution", "split", "tanh", "sigmoid", "mul", "convolution")]
    assert kinds(rewritten(drawing, sequences_to_images, y)) == [*kept, "squeeze"]


PASSES = fuse_epilogues, convolve_parts
IMAGES = ("n", 3, 6, 6)


#   x ──> conv ──> cat ──> conv ──> relu ──> y
#    └──> conv ──┘
PARTS = "cat(conv(x, 3, 4, True), conv(x, 3, 4), dim=1)"


def test_a_squeezing_convolution_adds_up_its_parts() -> None:
    made = left(PASSES, f"relu(conv({PARTS}, 8, 4, True))", x=IMAGES)

    assert made == [*["convolution"] * 3, "convolution_add"]


@pytest.mark.parametrize(
    "text",
    [
        f"relu(conv({PARTS}, 8, 5, True))",  # adding moves more than joining
        f"relu(conv({PARTS}, 8, 4, True, 2))",  # channels are in groups
        f"relu(conv({PARTS.replace('dim=1', 'dim=0')}, 4, 2, True))",  # joined along the batch
    ],
)
def test_other_convolutions_read_the_whole(text: str) -> None:
    assert left(PASSES, text, x=IMAGES).count("cat") == 1


def test_a_concatenation_with_another_reader_stays_whole() -> None:
    after = left(PASSES, f"c = {PARTS}; cat(relu(conv(c, 8, 2, True)), c, dim=1)", x=IMAGES)

    assert after == ["convolution", "convolution", "cat", "convolution", "cat"]
