"""The compiled module: images, lanes, and a CPU without it."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
import torch

from braid.engine.cpu.device_key import cpu_device_key
from braid.engine.cpu.native import find
from braid.engine.cpu.segments import EXECUTE, SIGNAL, WAIT, NativeSegment, find_runner
from braid.engine.onednn.library import find_onednn
from braid.engine.ops.dtypes import tensor_of
from tests import ROOT

RUNNER = find_runner()


@pytest.mark.skipif(RUNNER is None, reason="the part in C was not built")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 3, 37, 41), (3, 3, 5, 7), (2, 1, 9, 9), (2, 16, 30, 30)])
def test_images_come_into_the_order_that_kernels_want(shape: tuple[int, ...], threads: int) -> None:
    assert RUNNER is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    given = torch.randn(shape)

    images = tensor_of(RUNNER.as_images(given.numpy()))

    torch.set_num_threads(before)
    assert images.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images, given, rtol=0, atol=0)


@pytest.mark.skipif(RUNNER is None, reason="the part in C was not built")
def test_images_in_any_other_order_come_through_torch() -> None:
    assert RUNNER is not None
    given = torch.randn(2, 7, 3, 5).permute(0, 2, 1, 3)  # neither of the two orders

    images = tensor_of(RUNNER.as_images(given.numpy()))

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
    code = np.array([1, len(lanes), *ends, *lanes[0], *lanes[1]], np.int64)
    flags, bookmark = (np.zeros(count, np.int64) for count in (1, 2 + len(lanes)))
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


@pytest.fixture
def not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(find, "__file__", str(tmp_path / "find.py"))
    for function in (find.find_native, find_runner):
        function.cache_clear()
    yield
    for function in (find.find_native, find_runner):
        function.cache_clear()


@pytest.mark.usefixtures("not_built")
@pytest.mark.skipif(find_onednn() is None, reason="own kernels need oneDNN's package")
def test_one_warning_names_what_is_lost_and_what_to_install(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert [find_runner(), find_runner(), find.find_native()] == [None] * 3

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("Winograd", "apt-get install gcc", "pip install", "make setup"):
        assert words in record.getMessage()


@pytest.mark.skipif(find_runner() is None, reason="the part in C was not built")
def test_its_measurements_are_not_those_of_a_device_that_has_it(
    request: pytest.FixtureRequest,
) -> None:
    with_it = cpu_device_key(2, 2)
    request.getfixturevalue("not_built")

    assert cpu_device_key(2, 2) == f"{with_it}:native=none"


@pytest.mark.usefixtures("not_built")
def test_what_was_built_from_other_sources_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (ROOT / "engine/cpu/native").glob("*.[chs]*"):
        shutil.copy(path, tmp_path)
    if not list(tmp_path.glob("*.so")):
        pytest.skip("the part in C was not built")
    assert find.find_native() is not None

    with (tmp_path / "vectors.h").open("a") as source:
        source.write("/* changed */")
    find.find_native.cache_clear()

    assert find.find_native() is None
    assert "make setup" in caplog.text


def test_a_build_without_a_compiler_is_loud_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "build_ext"]
    places = [f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"]

    ran = subprocess.run(
        [*command, *places], cwd=ROOT, env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert "WITHOUT its part in C" in ran.stderr
    assert "apt-get install gcc" in ran.stderr
    assert list(tmp_path.rglob("*.so")) == []
