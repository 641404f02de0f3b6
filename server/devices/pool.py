"""All devices of a server.

    Devices ──> Device   (server/devices/device.py)   one worker process each

A device that cannot be used at the start is left out with one line in the log, and the others
serve; without any there is no server. A device whose worker dies later stays: the worker is
replaced, and meanwhile requests go to the other devices (server/inference/routing.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial

from braid.core.errors import BraidError, StartupError
from braid.core.usable_memory import usable_memory_bytes
from braid.engine.link.options import WatchLimits, WorkerEnd, WorkerOptions
from braid.engine.link.supervisor import LinkState
from braid.server.device_names import DeviceName, parse_device
from braid.server.devices.device import Device
from braid.server.devices.measuring.host import MakeMeasuringHost
from braid.server.devices.measuring.serving import measuring_host
from braid.server.devices.run_limits import RunLimits
from braid.server.settings import Settings

log = logging.getLogger("braid.devices")

CPU_START_SECONDS = 60.0
CUDA_START_SECONDS = 180.0
"""For one plan: its kernels may have to be compiled again."""

CUDA_WORKER_THREADS = 4
"""On the CPU, for what a GPU's worker computes there: references at registration."""


class Devices:
    """Belongs to the event loop."""

    def __init__(self, settings: Settings, make_host: MakeMeasuringHost = measuring_host) -> None:
        """Start nothing yet; ``make_host`` decides where registrations measure."""
        names = [parse_device(text) for text in settings.devices]
        limits = RunLimits(settings.run_seconds, settings.max_run_seconds)
        self.all = [
            Device(
                name.text,
                worker_options(settings, name),
                make_host=make_host,
                run_limits=limits,
            )
            for name in names
        ]
        """In the order of the setting; after ``start`` only those that can be used."""
        self.on_change: Callable[[Device], None] = lambda device: None
        """Told a device whose worker came up or died."""
        self.on_end: Callable[[str, WorkerEnd], None] = lambda device, end: None
        for device in self.all:
            device.link.on_state = partial(self._changed, device)
            device.link.on_end = partial(self._ended, device.name)

    @property
    def any_up(self) -> bool:
        """Whether some device takes calls now, and answers them."""
        return any(device.answers for device in self.all)

    def named(self, name: str) -> Device | None:
        """A device by its name; "" is the first."""
        return next((device for device in self.all if name in ("", device.name)), None)

    async def start(self) -> None:
        """Start all workers, at the same time.

        Raises:
            StartupError: none of them can be used.
        """
        outcomes = await asyncio.gather(*map(_start, self.all))
        refused = {
            device.name: problem
            for device, problem in zip(self.all, outcomes, strict=True)
            if problem
        }
        if len(refused) == len(self.all):
            raise StartupError("; ".join(f"{name}: {why}" for name, why in refused.items()))
        for name, why in refused.items():
            log.warning("a device is left out", extra={"device": name, "reason": why})
        for device in [device for device in self.all if device.name in refused]:
            self.all.remove(device)
            await device.close()

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(device.close() for device in self.all))

    def _changed(self, device: Device, _: LinkState) -> None:
        self.on_change(device)

    def _ended(self, name: str, end: WorkerEnd) -> None:
        self.on_end(name, end)


async def _start(device: Device) -> str:
    """Start one; why it cannot be used, if so."""
    try:
        await device.start()
    except (BraidError, OSError) as error:
        return str(error)
    return ""


def worker_options(settings: Settings, name: DeviceName) -> WorkerOptions:
    """How the worker of one device is started.

    Raises:
        StartupError: the cores that it names are not there.
    """
    usable = os.sched_getaffinity(0)
    cores = tuple(name.cores or sorted(usable)) if name.gpu is None else ()
    if missing := sorted(set(cores) - usable):
        raise StartupError(
            f"device {name.text} names cores that this process may not use: "
            f"{', '.join(map(str, missing[:8]))}; usable: {_ranges(sorted(usable))}"
        )
    threads = settings.threads or len(cores)
    on_cpu = name.gpu is None
    start_s = CPU_START_SECONDS if on_cpu else CUDA_START_SECONDS
    return WorkerOptions(
        threads=threads if on_cpu else min(CUDA_WORKER_THREADS, len(usable)),
        arena_bytes=settings.shared_memory_bytes,
        activation_bytes=settings.profiling_memory_bytes,
        timing_repeats=settings.timing_repeats,
        gpu=name.gpu,
        cores=cores,
        pin_threads=settings.pin_threads,
        start_timeout_s=start_s,
        memory_bytes=worker_memory_bytes(settings) if on_cpu else 0,
        watch=watch_limits(settings, on_cpu=on_cpu),
        keep_spare=settings.spare_worker,
    )


def watch_limits(settings: Settings, *, on_cpu: bool) -> WatchLimits:
    """When a worker counts as hung; a GPU's compilers and driver may keep the interpreter long."""
    if on_cpu:
        return WatchLimits(step_s=max(CPU_START_SECONDS, settings.max_run_seconds))
    return WatchLimits(
        silence_s=60.0,
        late_silence_s=10.0,
        step_s=max(CUDA_START_SECONDS, settings.max_run_seconds),
    )


def worker_memory_bytes(settings: Settings) -> int:
    """What one worker on a CPU may take: as set, else three quarters of what there is."""
    return settings.worker_memory_bytes or usable_memory_bytes() // 4 * 3


def _ranges(cores: list[int]) -> str:
    """Ascending numbers as people write them: ``0-3, 8``."""
    starts = [core for core in cores if core - 1 not in cores]
    ends = [core for core in cores if core + 1 not in cores]
    return ", ".join(
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    )
