"""Environment variables that the libraries of children read. Loads no torch."""

import math
import os
from collections.abc import Mapping
from functools import cache

from braid.core.allowance import cpu_allowance
from braid.core.child_process import child_environment, python_environment

CUDA_DEFAULTS = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # with fewer, eager work holds up the replay of graphs
}
"""Variables that CUDA reads once, at its start; those that the operator has set win."""


LIBRARY_DEFAULTS = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime would report on use, in a thread of its own
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's; it starts its threads when it loads
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # it would look through all installed packages for one
}
"""Variables without which importing a library starts threads, or what nobody asked for; those that
are set win."""


def library_environment() -> dict[str, str]:
    """Environment in which this process's children load their libraries, and workers run."""
    environment = cpu_environment(child_environment(), spins=_may_spin())
    return python_environment({**LIBRARY_DEFAULTS, **environment})


@cache  # this process gives cores away later
def _may_spin() -> bool:
    return math.isinf(cpu_allowance().quota)


def cpu_environment(
    environment: Mapping[str, str] = os.environ, *, spins: bool = True
) -> dict[str, str]:
    """OpenMP threads spin only briefly, as lanes of the next stage need their cores.

    Without ``spins`` they sleep, as a quota of CPU time would pay for spinning. Huge pages for
    weights and activations (docs/decisions/0008-onednn.md).
    """
    arenas = max(2, len(os.sched_getaffinity(0)))  # threads of libraries would take 2 MiB each
    ours = "glibc.malloc.hugetlb=1", f"glibc.malloc.arena_max={arenas}"
    tunables = ":".join(filter(None, [environment.get("GLIBC_TUNABLES"), *ours]))
    return {**environment, "GOMP_SPINCOUNT": "10000" if spins else "0", "GLIBC_TUNABLES": tunables}


def cuda_environment(gpu: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """One GPU only: no library can make a context, of hundreds of megabytes, on another."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    gpus = None if visible is None else [part.strip() for part in visible.split(",")]
    chosen = str(gpu) if gpus is None else gpus[gpu] if gpu < len(gpus) else "-1"
    return {**CUDA_DEFAULTS, **environment, "CUDA_VISIBLE_DEVICES": chosen}
