"""The device that the library compiles for: a worker process as long as something is compiled.

It is measured at the usual priority, as the network will run in the caller's process later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from braid.compiler.bench import MODULE, MeasuringProcess
from braid.core.errors import BraidError, StartupError
from braid.engine.link.messages import DeviceDescription, ProgramRequest
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.worker_process import OnProgress
from braid.server.device_names import parse_device
from braid.server.devices.worker_options import worker_options
from braid.server.settings import Settings

R = TypeVar("R")


class MeasuredDevice:
    """A ``braid.compiler.device.Device`` that serves nobody. Belongs to the event loop."""

    searches = True

    def __init__(self, name: str, options: WorkerOptions, arena: Arena) -> None:
        """Start nothing yet."""
        self.name = name
        self.options = options
        self._artefacts: dict[str, Path] = {}  # by digest
        self._bench = MeasuringProcess(name, options, arena, self._artefacts.__getitem__)
        self._description: DeviceDescription | None = None

    async def start(self) -> None:
        """Start the worker; what the device can do is known afterwards.

        Raises:
            StartupError: the device cannot be used.
        """
        try:
            self._description = await self._bench.describe()
        except (BraidError, OSError) as error:
            raise StartupError(f"{self.name}: {error}") from error

    async def close(self) -> None:
        """End the worker."""
        await self._bench.close()

    @property
    def _known(self) -> DeviceDescription:
        assert self._description is not None, "the worker was not up yet"
        return self._description

    @property
    def device_key(self) -> str:
        """Text that names what a measurement on this device depends on."""
        return self._known.device_key

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that models can be computed in."""
        return self._known.precisions

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Other runtimes that can run whole models there."""
        return self._known.runtimes

    @property
    def software(self) -> dict[str, str]:
        """Versions of the libraries of the worker, by name."""
        return dict(self._known.software)

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact."""
        self._artefacts[digest] = artefact
        await self._bench.load(digest)

    async def ask(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Ask about a program of a loaded model."""
        return await self._bench.call(request, on_progress)


@asynccontextmanager
async def measured_device(settings: Settings) -> AsyncIterator[MeasuredDevice]:
    """Start the device of the settings; its worker has ended afterwards.

    Raises:
        StartupError: the device cannot be used.
    """
    name = parse_device(*settings.devices)
    options = replace(worker_options(settings, name), module=MODULE)
    arena = Arena(options.arena_bytes)
    device = MeasuredDevice(name.text, options, arena)
    try:
        await device.start()
        yield device
    finally:
        await device.close()
        arena.close()
