"""Convolutions of concatenations, part by part."""

import pytest

from braid.engine.passes.fusion import convolve_parts, fuse_epilogues
from tests.engine.passes.drawing import Drawing, kinds, rewritten

PASSES = fuse_epilogues, convolve_parts


#   x ──> conv ──> cat ──> conv ──> relu ──> y
#    └──> conv ──┘
def squeezing(out: int, *, groups: int = 1, dim: int = 1) -> tuple[Drawing, str]:
    drawing = Drawing(x=("n", 3, 6, 6))
    parts = [drawing.conv("x", 3, 4, bias=True), drawing.conv("x", 3, 4)]
    joined = drawing.op("aten.cat", *parts, dim=dim)
    y = drawing.conv(joined, 8 if dim == 1 else 4, out, bias=True, groups=groups)
    return drawing, drawing.op("aten.relu", y)


def test_a_squeezing_convolution_adds_up_its_parts() -> None:
    drawing, y = squeezing(4)

    assert kinds(rewritten(drawing, PASSES, y)) == [*["convolution"] * 3, "convolution_add"]


@pytest.mark.parametrize(
    ("out", "groups", "dim"),
    [
        pytest.param(5, 1, 1, id="adding moves more than joining"),
        pytest.param(4, 2, 1, id="channels are in groups"),
        pytest.param(2, 1, 0, id="joined along the batch"),
    ],
)
def test_other_convolutions_read_the_whole(out: int, groups: int, dim: int) -> None:
    drawing, y = squeezing(out, groups=groups, dim=dim)

    assert kinds(rewritten(drawing, PASSES, y)).count("cat") == 1


def test_a_concatenation_with_another_reader_stays_whole() -> None:
    drawing, y = squeezing(2)
    joined = drawing.operators[2].outputs[0]
    both = drawing.op("aten.cat", y, joined, dim=1)

    after = kinds(rewritten(drawing, PASSES, both))
    assert after == ["convolution", "convolution", "cat", "convolution", "cat"]
