"""A device worker over the recording device, in a thread, and the front end's end of its link."""

from collections.abc import Callable

import numpy as np

from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.identity import GpuIdentity
from braid.engine.cuda.stage_timer import CudaStageTimer
from braid.engine.timing.samples import TimerOptions
from tests.engine.cuda.graphs import RegistryKernels
from tests.engine.cuda.recording import RecordingDriver
from tests.engine.worker.serving import ServedWorker

GPU = GpuIdentity(
    "NVIDIA H200", (9, 0), 132, 140 << 30, "580.65.06", "13.0", "91002", "2.11.0+cu130"
)
ARENA_BYTES = 1 << 20


class ServedGpu(ServedWorker):
    """A worker on a recording device."""

    def __init__(self, *, refuses_to_lock: bool = False) -> None:
        self.driver = RecordingDriver()
        self.driver.refuses_to_lock = refuses_to_lock
        super().__init__(self._backend, ARENA_BYTES)

    def _backend(self) -> CudaBackend:
        timer = CudaStageTimer(self.driver, 1 << 20, TimerOptions(), pace_size=8)
        backend = CudaBackend(self.driver, GPU, lambda _: RegistryKernels(), timer, host_threads=1)
        backend.lock_pages(np.frombuffer(self.arena, np.uint8))
        return backend


Fault = Callable[[], Exception]


def fail_launches(driver: RecordingDriver, fault: Fault, first: int = 0, count: int = 1) -> None:
    """Let launches from the ``first`` one on fail, ``count`` times."""
    left = [first, count]

    def before(_: RecordingDriver, run: object) -> None:
        if left[0]:
            left[0] -= 1
        elif left[1]:
            left[1] -= 1
            raise fault()

    driver.before_launch = before
