"""A worker that loads, runs and unloads models again and again takes no more memory.

``LOAD_CYCLES=1000 pytest -m slow`` of this file is the long form.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from braid.core.program import PlanToRun, ProgramKey
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.link.messages import LoadModel, PrepareExecutable, RunExecutable, UnloadModel
from braid.engine.link.shared_memory import slot_layout
from braid.engine.program.openvino_library import is_installed
from braid.engine.runtime.memory import give_back_freed_memory
from tests.engine.importer.running import import_here
from tests.engine.worker.serving import ServedWorker
from tests.models.small import product

SIZE = 1024  # of a matrix of 4 MiB
SPEC = TensorType("FP32", (1, SIZE))
LAYOUT = slot_layout({"x": SPEC}, {"y": SPEC})
CYCLES = int(os.environ.get("LOAD_CYCLES", "60"))
WARM = CYCLES // 5  # OpenVINO's heaps grow by 30 MiB in 300 cycles, and then hardly
MOST_BYTES = 48 << 20  # a fifth of what the weights of 60 cycles would take


@pytest.fixture
def worker() -> Iterator[ServedWorker]:
    worker = ServedWorker(lambda: CpuBackend(CpuExecutor(2)), 1 << 20)
    yield worker
    worker.close()


def private_bytes() -> int:
    gc.collect()
    give_back_freed_memory(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["", ONNXRUNTIME, OPENVINO])
def test_memory_stays_flat_over_cycles_of_load_and_unload(
    worker: ServedWorker, runtime: str, tmp_path: Path
) -> None:
    if runtime == OPENVINO and not is_installed():
        pytest.skip("OpenVINO is not installed")
    file = product(tmp_path / "net.onnx", np.eye(SIZE, dtype=np.float32) * 3)
    artefact = import_here(file, tmp_path / "artefact")
    digest = "d" * 64
    to_run = PlanToRun(ProgramKey(digest, (("x", SPEC),)), runtime=runtime)
    x, y = (
        worker.view(field.offset, (1, SIZE)) for field in (LAYOUT.inputs["x"], LAYOUT.outputs["y"])
    )

    def cycle(number: int) -> None:
        worker.call(LoadModel(digest, str(artefact)))
        worker.call(PrepareExecutable(number, to_run))
        x.fill_(number)
        y.fill_(0)
        worker.call(RunExecutable(number, 0))
        assert float(y[0, 0]) == 3 * number
        worker.call(UnloadModel(digest))

    for number in range(1, WARM + 1):
        cycle(number)
    before = private_bytes()
    for number in range(WARM + 1, WARM + CYCLES + 1):
        cycle(number)

    assert private_bytes() - before < MOST_BYTES
