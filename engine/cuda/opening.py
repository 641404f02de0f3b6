"""The one GPU of a worker process, with everything that serves on it."""

from __future__ import annotations

from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.driver.torch_driver import TorchDriver
from braid.engine.cuda.identity import read_identity
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.cuda.presence import require_gpu
from braid.engine.cuda.stage_timer import CudaStageTimer
from braid.engine.timing.samples import TimerOptions


def open_backend(activation_bytes: int, timer: TimerOptions, host_threads: int) -> CudaBackend:
    """Take the GPU; the calling thread is its thread from now on.

    Args:
        activation_bytes: kept on the device while stages are measured.
        timer: how carefully they are measured.
        host_threads: for what runs on the CPU.

    Raises:
        StartupError: one line that says why there is no GPU.
    """
    require_gpu()
    driver = TorchDriver()
    return CudaBackend(
        driver,
        read_identity(),
        lambda precision: CudaKernels(driver.device, precision),
        CudaStageTimer(driver, activation_bytes, timer),
        host_threads,
    )
