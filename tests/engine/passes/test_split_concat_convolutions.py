"""Convolutions of concatenations, part by part."""

import pytest

from braid.engine.passes.fusion import convolve_parts, fuse_epilogues
from tests.engine.passes.drawing import left

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
