"""All devices of a server.

A device that cannot be used at the start is left out with one line in the log, and the others
serve; without any there is no server. A device whose worker dies later stays: the worker is
replaced, and meanwhile requests go to the other devices (server/inference/routing.py).
"""

import asyncio
import logging
from collections.abc import Callable

from braid.compiler.bench import MakeMeasuringHost, measuring_host
from braid.core.allowance import cpu_allowance
from braid.core.errors import BraidError, StartupError
from braid.engine.processes.fork_server import ForkServer
from braid.server.device_names import parse_device
from braid.server.devices.device import Device, DeviceEvents
from braid.server.devices.executables import RunLimits
from braid.server.devices.worker_options import worker_options
from braid.server.settings import Settings

log = logging.getLogger("braid.devices")

ASLEEP_AFTER_S = 10
"""Seconds without a model or a job, after which no process holds the libraries that run them."""


class Devices:
    """Devices that can be used, in the order of the setting. Belongs to the event loop."""

    def __init__(
        self,
        settings: Settings,
        events: DeviceEvents,
        make_host: MakeMeasuringHost = measuring_host,
    ) -> None:
        self.allowance = cpu_allowance()
        """CPUs of the server, before the front end left some of them to devices."""
        names = [parse_device(text) for text in settings.devices]
        limits = RunLimits(settings.max_run_seconds / 3, settings.max_run_seconds)
        self.all = [
            Device(
                name.text,
                worker_options(settings, name, self.allowance),
                make_host=make_host,
                run_limits=limits,
                events=events,
            )
            for name in names
        ]
        """In the order of the setting; those that ``start`` cannot use leave the list."""

    @property
    def any_up(self) -> bool:
        return any(device.answers for device in self.all)

    def named(self, name: str) -> Device | None:
        """Return the device of a name, or None; "" names the first."""
        return next((device for device in self.all if name in ("", device.name)), None)

    async def start(self) -> None:
        """Start all workers, at the same time. Raises StartupError: none of them can be used."""
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

    async def sleep_while(self, is_empty: Callable[[], bool]) -> None:
        """End the processes that hold libraries while there are no models; until cancelled.

        The next upload starts the fork server, and the first model that is loaded its worker.
        """
        empty_s = 0
        while True:
            await asyncio.sleep(1)
            empty_s = empty_s + 1 if is_empty() else 0
            if empty_s < ASLEEP_AFTER_S:
                continue
            for device in self.all:
                await device.sleep()
            if is_empty():
                await asyncio.to_thread(ForkServer.end_unless_used)

    async def close(self) -> None:
        await asyncio.gather(*(device.close() for device in self.all))


async def _start(device: Device) -> str:
    """Start one device; returns why it cannot be used, or ""."""
    try:
        await device.start()
    except (BraidError, OSError) as error:
        return str(error)
    return ""
