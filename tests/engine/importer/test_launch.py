import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import torch
from torch import Tensor, nn

from braid.core.errors import ImportLimitExceeded, ModelImportError
from braid.engine.importer.host.launch import WORK_PREFIX, how_killed, import_model
from braid.engine.importer.host.report import MODEL_FILE, read_report
from braid.engine.importer.host.request import GIB, ImportLimits
from braid.engine.processes.child import is_more, oom_kills
from tests.engine.importer.running import imported, importers, left_in, map_much_with_torch
from tests.engine.pt2.programs import save
from tests.models.bad_onnx import loop, slow
from tests.models.graphs import from_x

RELU = from_x("y = Relu(x)").SerializeToString()


async def test_progress_grows_to_the_end(tmp_path: Path) -> None:
    seen: list[float] = []

    artefact = await imported(RELU, tmp_path, on_progress=lambda f, _: seen.append(f))

    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] > 0.8
    assert left_in(tmp_path) == ["artefact"]
    assert read_report(artefact).size_bytes == len(RELU)


@pytest.mark.ci
async def test_a_hanging_import_ends_at_the_wall_clock_limit(tmp_path: Path) -> None:
    with pytest.raises(ImportLimitExceeded, match="BRAID_IMPORT_WALL_SECONDS"):
        await imported(slow(), tmp_path, ImportLimits(wall_seconds=3))

    assert importers() == []
    assert left_in(tmp_path) == []


@pytest.mark.ci
async def test_a_busy_import_ends_at_the_cpu_limit(tmp_path: Path) -> None:
    with pytest.raises(ImportLimitExceeded, match="all its CPU seconds"):
        await imported(slow(), tmp_path, ImportLimits(cpu_seconds=2))

    assert left_in(tmp_path) == []


BY_CONTENT = f"most = ReduceMax<keepdims=0>(x)  go = Greater(most, low)  {loop(', go, x')}"
ENDLESS = {
    "by content": from_x(BY_CONTENT, low=np.float32(-1e9)),
    "by a constant": from_x(loop("trips, , x"), trips=1 << 62),
    "without a count": from_x(loop(", , x")),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_loop_without_end_ends_at_the_limit_of_a_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(ImportLimitExceeded, match="BRAID_IMPORT_RUN_SECONDS"):
        await imported(ENDLESS[name], tmp_path, ImportLimits(run_seconds=0.5))

    assert left_in(tmp_path) == []


def test_the_kernels_count_tells_why_an_importer_was_killed(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 7\noom_kill 2\n")

    assert oom_kills(counters) == 2
    assert oom_kills(tmp_path / "none") is None
    assert (is_more(1, 2), is_more(2, 2), is_more(None, None)) == (True, False, None)
    assert "ran out of memory" in how_killed(short_of_memory=True)
    assert "by another process, not for want of memory" in how_killed(short_of_memory=False)
    assert "or by another process" in how_killed(short_of_memory=None)


async def test_an_import_without_memory_says_which_setting_to_raise(tmp_path: Path) -> None:
    with pytest.raises(ImportLimitExceeded, match="BRAID_IMPORT_MEMORY_BYTES"):
        await imported(slow(), tmp_path, ImportLimits(memory_bytes=GIB * 3 // 4))

    assert left_in(tmp_path) == []


async def test_the_memory_limit_does_not_count_what_libraries_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(map_much_with_torch(tmp_path, 3 * GIB)))
    upload, artefact = tmp_path / "upload", tmp_path / "artefact"
    upload.write_bytes(RELU)

    await import_model(upload, artefact, ImportLimits(memory_bytes=GIB), lambda *_: None)

    assert read_report(artefact).size_bytes == len(RELU)


class _Deep(nn.Module):
    """x [1, 1024] through 16 square layers: 64 MiB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.mark.ci
async def test_an_importer_keeps_few_copies_of_weights(tmp_path: Path) -> None:
    file = save(_Deep(), (torch.ones(1, 1024),), tmp_path / "deep.pt2", open_batch=False)

    # It needs 500 MiB, and needed 775 with what protobuf takes to serialise them all at once.
    limits = ImportLimits(memory_bytes=640 << 20)
    await import_model(file, tmp_path / "artefact", limits, lambda *_: None)

    report = read_report(tmp_path / "artefact")
    assert report.verified.batches
    converted = onnx.load(tmp_path / "artefact" / MODEL_FILE)
    onnx.checker.check_model(converted, full_check=True)
    kept = {tensor.name: tensor for tensor in converted.graph.initializer}
    for name, tensor in torch.export.load(file).state_dict.items():
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(kept[name]), tensor.detach())


@pytest.mark.ci
@pytest.mark.parametrize("mapped_bytes", [0, 3 * GIB])
async def test_intermediate_tensors_beyond_the_memory_limit_are_refused(
    mapped_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mapped_bytes:
        monkeypatch.setenv("PYTHONPATH", str(map_much_with_torch(tmp_path, mapped_bytes)))

    with pytest.raises(ImportLimitExceeded, match="BRAID_IMPORT_MEMORY_BYTES"):
        await imported(_wide(), tmp_path, ImportLimits(memory_bytes=2 * GIB))


def _wide() -> bytes:
    """A sum over a tensor of 4 GiB."""
    made = from_x(
        "wide = Expand(x, sizes)  y = ReduceSum<keepdims=0>(wide)", "n, 1", sizes=[1 << 14, 1 << 16]
    )
    return made.SerializeToString()


async def test_an_artefact_over_the_file_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportLimitExceeded, match="a file grew too large"):
        await imported(_heavy(), tmp_path, ImportLimits(file_bytes=1 << 20))

    assert left_in(tmp_path) == []


def _heavy() -> bytes:
    """4 MiB of weights."""
    weights = np.ones((1024, 1024), np.float32)
    return from_x("y = MatMul(x, w)", "n, 1024", w=weights).SerializeToString()


@pytest.mark.parametrize(
    ("number", "expected", "words"),
    [
        pytest.param(
            signal.SIGSEGV, ModelImportError, "crashed on this model", marks=pytest.mark.ci
        ),
        (signal.SIGKILL, ModelImportError, "was killed .SIGKILL."),
    ],
)
async def test_the_death_of_an_importer_is_a_failed_import(
    number: signal.Signals, expected: type[Exception], words: str, tmp_path: Path
) -> None:
    struck: list[psutil.Process] = []

    def strike(fraction: float, step: str) -> None:
        if fraction > 0 and not struck:
            struck.append(importers()[0])
            struck[0].send_signal(number)

    with pytest.raises(expected, match=words):
        await imported(slow(), tmp_path, on_progress=strike)

    assert left_in(tmp_path) == []


async def test_cancelling_kills_the_process_and_removes_its_files(tmp_path: Path) -> None:
    running = asyncio.Event()
    importing = asyncio.create_task(
        imported(slow(), tmp_path, on_progress=lambda f, _: running.set() if f else None)
    )
    await running.wait()
    assert len(importers()) == 1
    assert left_in(tmp_path)[0].startswith(WORK_PREFIX)

    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing

    assert importers() == []
    assert left_in(tmp_path) == []


@pytest.mark.ci
async def test_two_imports_of_the_same_bytes_end_with_one_artefact(tmp_path: Path) -> None:
    first, second = await asyncio.gather(imported(RELU, tmp_path), imported(RELU, tmp_path))

    assert first == second
    assert left_in(tmp_path) == ["artefact"]


async def test_the_importer_dies_with_the_server_and_leaves_a_folder(tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(slow())
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SERVER, tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    await server.stdout.readline()  # it imports by now
    (importer,) = importers(server.pid)

    server.kill()
    await server.wait()

    gone, alive = psutil.wait_procs([importer], timeout=120)
    assert (len(gone), alive) == (1, [])
    (left,) = left_in(tmp_path)
    assert left.startswith(WORK_PREFIX)


_SERVER = """
import asyncio, sys
from pathlib import Path
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.request import ImportLimits
folder = Path(sys.argv[1])
tell = lambda fraction, step: print(step, flush=True)
asyncio.run(import_model(folder / "upload", folder / "artefact", ImportLimits(), tell))
"""


def test_the_front_ends_side_loads_neither_torch_nor_onnx() -> None:
    check = (
        "import sys, braid.engine.importer.host.launch, braid.engine.importer.host.report\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
