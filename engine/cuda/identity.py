"""Device key of a GPU, and the versions that measurements on it depend on."""

import ctypes
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

KERNELS_REVISION = 2  # raise it when our kernels change so much that old measurements mislead

DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
FASTEST_CLOCK_MHZ = 2600.0
"""Clock of the fastest GPU so far, which keeps bounds lower bounds if torch tells no clock."""
FP32_LANES = 128  # multiply-adds of a multiprocessor in a cycle, since compute capability 8.6


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """One GPU and the software that drives it."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    driver: str
    cuda: str
    cudnn: str
    torch: str
    clock_mhz: float = FASTEST_CLOCK_MHZ

    @property
    def device_key(self) -> str:
        """Canonical text: ``cuda:NVIDIA H200:cc=9.0:sms=132:memory=140GiB:driver=...``."""
        facts = {
            "cc": ".".join(map(str, self.capability)),
            "sms": self.multiprocessors,
            "memory": f"{round(self.memory_bytes / 2**30)}GiB",
            "driver": self.driver,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "torch": self.torch,
            "kernels": KERNELS_REVISION,
        }
        name = self.name.replace(":", " ")
        return ":".join(["cuda", name, *(f"{key}={value}" for key, value in facts.items())])

    @property
    def software(self) -> dict[str, str]:
        return {
            "torch": self.torch,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "driver": self.driver,
            "python": platform.python_version(),
        }

    @property
    def fp32_flop_per_us(self) -> float:
        return self.multiprocessors * FP32_LANES * 2 * self.clock_mhz


def read_identity() -> GpuIdentity:
    facts = torch.cuda.get_device_properties(0)
    clock_khz = float(getattr(facts, "clock_rate", 0) or 0)  # newer versions of torch tell it
    return GpuIdentity(
        name=str(facts.name),
        capability=(int(facts.major), int(facts.minor)),
        multiprocessors=int(facts.multi_processor_count),
        memory_bytes=int(facts.total_memory),
        driver=driver_version(),
        cuda=str(torch.version.cuda),
        cudnn=str(torch.backends.cudnn.version()),
        torch=torch.__version__,
        clock_mhz=clock_khz / 1e3 or FASTEST_CLOCK_MHZ,
    )


def driver_version(file: Path = DRIVER_VERSION_FILE) -> str:
    """Version of NVIDIA's kernel module, e.g. ``580.65.06``; "unknown" if it cannot be read."""
    try:
        text = file.read_text()
    except OSError:
        return _driver_by_nvml() or "unknown"
    release = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return release[1] if release else "unknown"


def _driver_by_nvml() -> str:
    """Version from NVIDIA's management library, for containers that hide the file."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return ""
        text = ctypes.create_string_buffer(96)
        failed = library.nvmlSystemGetDriverVersion(text, len(text))
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode("ascii", "replace")
