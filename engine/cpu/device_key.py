"""Device key: everything that a latency measured on this device depends on."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

from braid.engine.onednn.library import onednn_version

KERNELS_REVISION = 3
"""Number to raise when kernels or their timing change so much that old latencies mislead."""


def cpu_device_key(threads: int, cores: int) -> str:
    """Canonical text: ``cpu:AMD EPYC:cores=2:isa=AVX512:threads=2:torch=2.13.0+cpu:...``."""
    facts = {
        "cores": str(cores),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": str(threads),
        "torch": torch.__version__,
        "onednn": onednn_version(),
        "kernels": str(KERNELS_REVISION),
    }
    return ":".join(["cpu", _cpu_model(), *(f"{name}={value}" for name, value in facts.items())])


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def software_versions() -> dict[str, str]:
    """Versions that a schedule's provenance names."""
    return {
        "torch": torch.__version__,
        "onednn": onednn_version(),
        "python": platform.python_version(),
    }
