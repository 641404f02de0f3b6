"""The one GPU of a worker process, with everything that serves on it."""

import torch

from braid.core.errors import StartupError
from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.driver.torch_driver import TorchDriver
from braid.engine.cuda.identity import read_identity
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.cuda.stage_timer import CudaStageTimer
from braid.engine.timing.samples import TimerOptions


def open_backend(activation_bytes: int, timer: TimerOptions, host_threads: int) -> CudaBackend:
    """Take the GPU for the calling thread; ``StartupError`` says in a line why there is none."""
    torch.set_num_threads(host_threads)
    require_gpu()
    driver = TorchDriver()
    return CudaBackend(
        driver,
        read_identity(),
        lambda precision: CudaKernels(driver.device, precision),
        CudaStageTimer(driver, activation_bytes, timer),
        host_threads,
    )


def require_gpu() -> None:
    """Start CUDA on the only GPU that this process sees.

    Raises ``StartupError`` without a GPU, with no or too old a driver, or a torch without CUDA.
    """
    if torch.version.cuda is None:
        raise StartupError(
            f"PyTorch {torch.__version__} is built without CUDA; install a build for CUDA, or "
            "leave this device out"
        )
    try:
        torch.cuda.init()
        torch.empty(1, device="cuda")  # makes the context, which can fail, too
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        raise StartupError(f"the GPU cannot be used: {_first_sentence(error)}") from error


def _first_sentence(error: BaseException) -> str:
    """First sentence of an error: torch's messages then say what to download."""
    line = " ".join(str(error).split("\n")[0].split())
    return line.partition(". ")[0].rstrip(".")[:300] or type(error).__name__
