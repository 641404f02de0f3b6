"""What a registration job asks of the rest of the server, as small Protocols.

Any call may raise braid.core.errors. ``Unavailable`` means: again in a moment (a worker restarts).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
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
    """Models that answer requests (``braid.server.models.serving_models``)."""

    def register(self, model: ModelVersion) -> None: ...
    def was_not_restored(self, model: ModelVersion) -> bool: ...
    def replacing(self, model: ModelVersion) -> None: ...
    def give_up(self, model: ModelVersion) -> bool: ...
    async def serve(self, model: ModelVersion, imported: ImportedModel, device: str) -> None: ...
    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None: ...
    async def use_sequential(
        self, model: ModelVersion, device: str, schedule: Schedule
    ) -> None: ...
    async def unload(self, model: ModelVersion) -> None: ...


class JobObserver(Protocol):
    """Counts of what jobs do (``braid.server.observability.series.jobs``)."""

    def jobs_counted(self, by_state: Mapping[str, int]) -> None: ...
    def stage_measured(self, device: str, seconds: float) -> None: ...
    def stages_reused(self, device: str, count: int) -> None: ...
    def schedule_looked_up(self, hit: bool) -> None: ...
    def plans_refused(self, device: str, count: int) -> None: ...


class Room:
    """Memory that models share, and the order in which they want it; here as much as there is."""

    def room_for(self, model: ModelVersion) -> AbstractAsyncContextManager[None]:
        """Make room for a version, which is loaded inside the block."""
        return nullcontext()

    async def more(self, model: ModelVersion) -> bool:
        """Make more room, as that was not enough; False: nothing else can leave."""
        return False

    def has_room(self, model: ModelVersion) -> bool:
        """Whether a version fits beside the others."""
        return True

    def is_wanted(self, model: ModelVersion) -> bool:
        """Whether a restart loads a version before a request names it."""
        return True

    def place_in_order(self, model: ModelVersion) -> int:
        """Place in which a restart loads a version; those of one place by their size."""
        return 0


OnSchedule = Callable[[ModelVersion, str, Schedule], None]
"""Takes a schedule that was found or made for a model on a device; promoted, it serves."""
