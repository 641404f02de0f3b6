"""What a registration job asks of the rest of the server, as small Protocols.

Any call may raise braid.core.errors. ``Unavailable`` means: again in a moment (a worker restarts).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from braid.compiler.bench import MeasuringHost
from braid.compiler.device import Device
from braid.compiler.imported_model import ImportedModel
from braid.core.schedule import Schedule
from braid.engine.importer.host.messages import OnProgress
from braid.engine.importer.host.request import Hints
from braid.server.store.records import ModelVersion

ImportModel = Callable[[Path, Path, OnProgress, Hints], Awaitable[None]]
"""Imports an uploaded file into an artefact folder, which appears whole or not at all."""

CheckImported = Callable[[ImportedModel], None]
"""Raises BraidError if an imported model is not what was asked for; it does not serve then."""


class ServingDevice(Device, Protocol):
    """A device, as far as jobs use it."""

    @property
    def bench(self) -> MeasuringHost:
        """Where it is measured."""

    def keeping(self, digest: str) -> AbstractAsyncContextManager[None]:
        """Keep a model loaded while the context is open, even if its other users end."""

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact, which the caller keeps; does nothing if it is loaded."""


class PlanTarget(Protocol):
    """Models that answer requests."""

    def register(self, model: ModelVersion) -> None:
        """Record a version, or its new state."""

    def was_not_restored(self, model: ModelVersion) -> bool:
        """True if a version served before the server's restart and could not be restored."""

    def replacing(self, model: ModelVersion) -> None:
        """Record what will take the place of a version that serves, once it serves itself."""

    def give_up(self, model: ModelVersion) -> bool:
        """Forget what was to take a version's place; returns True if it has not taken it yet."""

    async def serve(self, model: ModelVersion, imported: ImportedModel, device: str) -> None:
        """Let a version whose model is loaded on a device answer there, with its sequential plan.

        If it does already, nothing changes. Takes the place of other bytes of the same version.
        """

    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Let batches formed from now on, on a device, run ``schedule.plan``.

        They are formed by the latency that was measured of it. Raises InvalidArtefact: the plan
        does not fit the model; the old plan stays.
        """

    async def use_sequential(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Let the sequential plan run, of a schedule not promoted, and form batches by its latency.

        Where the plan of an earlier schedule ran so far, it goes.
        """

    async def unload(self, model: ModelVersion) -> None:
        """End the replicas of a version, and record its new state."""


class JobObserver(Protocol):
    """Counts of what jobs do."""

    def jobs_counted(self, by_state: Mapping[str, int]) -> None:
        """Take the number of jobs in each state, which has changed."""

    def stage_measured(self, device: str, seconds: float) -> None:
        """Count a stage that was measured, and the seconds it took."""

    def stages_reused(self, device: str, count: int) -> None:
        """Count stage latencies that were found in the store."""

    def schedule_looked_up(self, hit: bool) -> None:
        """Count one look-up of a stored schedule, and whether it was found."""

    def plans_refused(self, device: str, count: int) -> None:
        """Count plans that were refused because their outputs were wrong."""


OnSchedule = Callable[[ModelVersion, str, Schedule], None]
"""Takes a schedule that was found or made for a model on a device; promoted, it serves."""
