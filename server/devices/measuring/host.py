"""Where registrations measure on a device, so that requests hardly notice.

CPU   MeasuringProcess: a worker of its own that gives way to the one that serves; the kernel takes
      its cores away within a moment, in the middle of whatever it runs.    (measuring/process.py)
GPU   ServingProcess: the device's worker, between requests; on a GPU two processes would take
      turns of milliseconds, and each needs a context.                      (measuring/serving.py)

Which process measured does not matter to what was measured: same device, same code, same threads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from braid.engine.link.messages import ProgramRequest
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import WorkerLink
from braid.engine.link.worker_process import OnProgress

R = TypeVar("R")


class MeasuringHost(Protocol):
    """A worker process that measures."""

    @property
    def is_measuring(self) -> bool:
        """True if a call is open that competes with the serving worker for cores."""

    @property
    def pid(self) -> int | None:
        """Process id, or None if no process of its own runs."""
        return None

    async def call(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Send a request about a model that the device has loaded; returns its reply.

        Raises:
            WorkerRestarting: no worker is up, it died, or it does not start.
        """

    def prepare(self) -> None:
        """Start ahead what a registration will need, while nothing is measured."""

    def wake(self) -> None:
        """Prepare for calls that will come soon."""

    def unload(self, digest: str) -> None:
        """Forget a model that no call is about any more."""

    async def close(self) -> None:
        """End what was started here."""


ArtefactOf = Callable[[str], Path]
"""Folder of a model that the device has loaded, by its digest."""

MakeMeasuringHost = Callable[[WorkerLink, Arena, ArtefactOf], MeasuringHost]
"""Makes the host of one device, whose serving worker is that of the link."""
