"""What the part in C does besides running lanes."""

from __future__ import annotations

import pytest
import torch

from braid.engine.cpu.segments import find_runner

RUNNER = find_runner()


@pytest.mark.skipif(RUNNER is None, reason="the part in C was not built")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 3, 37, 41), (3, 3, 5, 7), (2, 1, 9, 9), (2, 16, 30, 30)])
def test_images_come_into_the_order_that_kernels_want(shape: tuple[int, ...], threads: int) -> None:
    assert RUNNER is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    given = torch.randn(shape)

    images = RUNNER.as_images(given)

    torch.set_num_threads(before)
    assert images.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images, given, rtol=0, atol=0)


@pytest.mark.skipif(RUNNER is None, reason="the part in C was not built")
def test_images_in_any_other_order_come_through_torch() -> None:
    assert RUNNER is not None
    given = torch.randn(2, 7, 3, 5).permute(0, 2, 1, 3)  # neither of the two orders

    images = RUNNER.as_images(given)

    assert images.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images, given, rtol=0, atol=0)
