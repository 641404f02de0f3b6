"""What the part in C does besides running lanes."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch

from braid.engine.cpu.segments import EXECUTE, SIGNAL, WAIT, NativeSegment, find_runner

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


@pytest.mark.skipif(RUNNER is None, reason="the part in C was not built")
def test_a_lane_that_may_not_spin_sleeps_while_it_waits_for_another() -> None:
    """Lane 0 ends once the thread of lane 1 has gone to sleep twenty times."""
    assert RUNNER is not None
    own, before = threading.get_native_id(), switches()

    def wait_for_naps(*_: object) -> int:
        end = monotonic() + 120
        while monotonic() < end:
            naps = max(n - before.get(task, 0) for task, n in switches().items() if task != own)
            if naps >= 20:
                return 0
            sleep(0.001)
        return 1

    execute = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int, ctypes.c_void_p)
    function = execute(wait_for_naps)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    lanes = [[EXECUTE, address, 0, 0, 0, 0, SIGNAL, 0], [WAIT, 0]]
    first = 2 + 2 * len(lanes)  # word behind the header of the only segment
    ends = [first, first + 8, first + 8, first + 10]
    code = torch.tensor([1, len(lanes), *ends, *lanes[0], *lanes[1]])
    flags, bookmark = (torch.zeros(count, dtype=torch.int64) for count in (1, 2 + len(lanes)))
    native = NativeSegment(code, flags, bookmark, runs=1)
    RUNNER.let_lanes_spin(False)
    try:
        RUNNER.run(native, None)
    finally:
        RUNNER.let_lanes_spin(True)


def switches() -> dict[int, int]:
    """By thread of this process: how often it has gone to sleep."""
    counts = {}
    for task in Path("/proc/self/task").iterdir():
        status = (task / "status").read_text()
        counts[int(task.name)] = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return counts
