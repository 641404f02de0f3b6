"""The backend of a GPU, put together as a device worker does."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from engine.cuda.backend import CudaBackend
from engine.cuda.identity import read_identity
from engine.cuda.torch_driver import open_device
from engine.executor.program import Program
from engine.kernels.cuda import CudaKernels
from engine.pause import Pause
from engine.timing.samples import Timing
from engine.worker.backend import AskedStage, MakeInputs


class NoTimer:
    """For who measures no stages."""

    def measure(
        self, program: Program, inputs: MakeInputs, stage: AskedStage, pause: Pause
    ) -> Generator[None, None, Timing]:
        """Nobody asks."""
        raise AssertionError("stages are measured in the device worker")
        yield

    def forget(self) -> None:
        """Nothing was kept."""


def open_backend() -> CudaBackend:
    """The GPU that this process sees."""
    driver = open_device()
    kernels = partial(CudaKernels, driver.device)
    return CudaBackend(driver, read_identity(), kernels, NoTimer(), host_threads=4)
