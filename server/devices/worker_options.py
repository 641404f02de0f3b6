"""How the worker process of each device is started, from the server's settings."""

import math
from collections.abc import Sequence

from braid.core.allowance import CpuAllowance, cpu_allowance
from braid.core.device_state import ranges_text
from braid.core.errors import StartupError
from braid.engine.link.options import WatchLimits, WorkerOptions
from braid.server.device_names import DeviceName, parse_devices
from braid.server.settings import Settings

CPU_START_SECONDS = 60.0
CUDA_START_SECONDS = 180.0
"""From one answer to the next: the kernels of a plan may have to be compiled again."""

MOST_ACTIVATION_BYTES = 2 << 30
"""Activations kept on a device while its stages are measured; beyond it they are made up."""

CUDA_WORKER_THREADS = 4
"""Threads on the CPU for the references that a GPU's worker computes at registration."""


def worker_options(
    settings: Settings, name: DeviceName, allowance: CpuAllowance | None = None
) -> WorkerOptions:
    """Return how the worker of one device is started.

    A quota of CPU time is divided among CPU devices by their cores. Under one below the cores that
    this process may use, threads have no cores of their own, which other groups use as well; a
    device that names none is where this process is (``quota_cores``). ``allowance``: CPUs that this
    process may use; None: asks the system. Raises StartupError: this process may not use the cores
    that the name gives, or they are fewer than the threads.
    """
    allowance = allowance or cpu_allowance()
    usable = allowance.cores
    cores = tuple(name.cores or usable) if name.gpu is None else ()
    if missing := sorted({*cores} - {*usable}):
        raise StartupError(
            f"device {name.text} names cores that this process may not use: "
            f"{', '.join(map(str, missing[:8]))}; usable: {ranges_text(usable, ', ')}"
        )
    on_cpu = name.gpu is None
    quota = _quota_of(cores, settings, allowance) if on_cpu else math.inf
    threads = settings.threads or max(1, math.floor(min(quota, len(cores))))
    if on_cpu and threads > len(cores):
        raise StartupError(
            f"BRAID_THREADS={threads} is more than the {len(cores)} cores of device {name.text}"
        )
    start_s = CPU_START_SECONDS if on_cpu else CUDA_START_SECONDS
    return WorkerOptions(
        threads=threads if on_cpu else min(CUDA_WORKER_THREADS, allowance.threads),
        arena_bytes=settings.shared_memory_bytes,
        activation_bytes=min(MOST_ACTIVATION_BYTES, settings.bench_memory_bytes // 4),
        gpu=name.gpu,
        cores=cores if name.cores or math.isinf(quota) else (),
        pin_threads=settings.pin_threads and math.isinf(quota),
        cpu_quota=0.0 if math.isinf(quota) else quota,
        start_timeout_s=start_s,
        memory_bytes=settings.worker_memory_bytes if on_cpu else 0,
        bench_memory_bytes=settings.bench_memory_bytes if on_cpu else 0,
        watch=watch_limits(settings, on_cpu=on_cpu),
    )


def watch_limits(settings: Settings, *, on_cpu: bool) -> WatchLimits:
    """Return when a worker counts as hung; a GPU's compiler holds the interpreter longer."""
    if on_cpu:
        return WatchLimits(step_s=max(CPU_START_SECONDS, settings.max_run_seconds))
    return WatchLimits(
        silence_s=60.0,
        late_silence_s=10.0,
        step_s=max(CUDA_START_SECONDS, settings.max_run_seconds),
    )


def _quota_of(cores: Sequence[int], settings: Settings, allowance: CpuAllowance) -> float:
    """Part of the quota for a device of these cores; infinite without a quota."""
    sizes = [
        len(device.cores or allowance.cores)
        for device in parse_devices(settings.devices)
        if device.gpu is None
    ]
    return allowance.quota * len(cores) / max(len(cores), sum(sizes))
