"""Measuring in the worker that serves, and the choice between it and a process of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from braid.engine.link.messages import ProgramRequest
from braid.engine.link.options import WatchLimits
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import WorkerLink
from braid.engine.link.worker_process import OnProgress
from braid.server.devices.measuring.host import ArtefactOf, MeasuringHost
from braid.server.devices.measuring.process import MeasuringProcess

MODULE = "braid.engine.worker.process.measuring_main"

PATIENCE = 10
"""Factor by which the limits of a worker grow that gives way to the one that serves."""


R = TypeVar("R")


class ServingProcess(MeasuringHost):
    """Worker that serves, which measures between requests."""

    is_measuring = False

    def __init__(self, link: WorkerLink) -> None:
        self._link = link

    async def call(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Send a request to the worker that serves; the model is loaded there."""
        return await self._link.call(request, on_progress)

    def prepare(self) -> None:
        """Do nothing: the worker is up."""

    def wake(self) -> None:
        """Do nothing: the worker is up."""

    def unload(self, digest: str) -> None:
        """Do nothing: the device unloads its models itself."""

    async def close(self) -> None:
        """Do nothing: the device ends its worker itself."""


def measuring_host(link: WorkerLink, arena: Arena, artefact_of: ArtefactOf) -> MeasuringHost:
    """Return a process of its own for a CPU, the serving worker for a GPU."""
    if link.options.gpu is not None:
        return ServingProcess(link)
    limits = link.options.watch
    patient = WatchLimits(
        silence_s=PATIENCE * limits.silence_s,
        late_silence_s=PATIENCE * limits.late_silence_s,
        step_s=PATIENCE * limits.step_s,
    )
    options = replace(link.options, module=MODULE, watch=patient)
    return MeasuringProcess(
        link.name, options, arena, artefact_of, keep_ready=options.keep_spare_bench
    )
