"""The device that the library compiles for: a worker process as long as something is compiled.

It is measured at the usual priority, as the network will run in the caller's process later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from braid.compiler.bench import MODULE, MeasuringProcess
from braid.core.errors import BraidError, StartupError
from braid.engine.link.messages import ProgramRequest
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.worker_process import OnProgress
from braid.server.device_names import parse_device
from braid.server.devices.worker_options import worker_options
from braid.server.settings import Settings

R = TypeVar("R")


@dataclass(slots=True)
class MeasuredDevice:
    """A ``braid.compiler.device.Device`` that serves nobody. Belongs to the event loop."""

    name: str
    options: WorkerOptions
    bench: MeasuringProcess
    artefacts: dict[str, Path]  # that ``bench`` loads, by digest
    device_key: str
    precisions: tuple[str, ...]
    runtimes: tuple[str, ...]
    software: Mapping[str, str]

    async def load(self, digest: str, artefact: Path) -> None:
        self.artefacts[digest] = artefact
        await self.bench.load(digest)

    async def ask(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        return await self.bench.call(request, on_progress)


@asynccontextmanager
async def measured_device(settings: Settings) -> AsyncIterator[MeasuredDevice]:
    """Start the device of the settings, ended afterwards; StartupError: it cannot be used."""
    name = parse_device(*settings.devices)
    options = replace(worker_options(settings, name), module=MODULE)
    arena, artefacts = Arena(options.arena_bytes), dict[str, Path]()
    bench = MeasuringProcess(name.text, options, arena, artefacts.__getitem__)
    try:
        try:
            described = await bench.describe()
        except (BraidError, OSError) as error:
            raise StartupError(f"{name.text}: {error}") from error
        facts = described.device_key, described.precisions, described.runtimes, described.software
        yield MeasuredDevice(name.text, options, bench, artefacts, *facts)
    finally:
        await bench.close()
        arena.close()
