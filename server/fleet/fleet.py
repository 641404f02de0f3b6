"""Parts of a server that shares its database with others: composed here, run by the front end.

Notifications ──> Following ──> Reconciler ──> models of this node
schedules that were found ──> SameSpeed
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy import URL

from braid.core.background import BackgroundTasks
from braid.core.keyed_locks import KeyedLocks
from braid.core.schedule import Schedule
from braid.server.fleet.claims import ClaimLoop
from braid.server.fleet.follow.following import Following
from braid.server.fleet.follow.loads import Loads
from braid.server.fleet.follow.reconcile import Reconciler
from braid.server.fleet.follow.same_speed import SameSpeed
from braid.server.fleet.leases import Leases
from braid.server.fleet.notifications import ANYTHING, Change, Notifications
from braid.server.jobs.runner import JobRunner
from braid.server.jobs.services import JobServices
from braid.server.models.serving_models import ServingModels
from braid.server.observability.series.following import FollowMetrics
from braid.server.store.records import ModelVersion

OF_JOBS = (ANYTHING, "jobs", "nodes")
"""Changes after which there may be a job to take over, or to end."""


@dataclass(frozen=True, slots=True)
class FleetParts:
    """What a fleet needs of the rest of a server."""

    database: URL
    poll_seconds: float
    services: JobServices
    models: ServingModels
    runner: JobRunner
    turns: KeyedLocks  # of ModelLoader
    leases: Leases
    registry: CollectorRegistry


class Fleet:
    """This node among the others. Belongs to the event loop."""

    def __init__(self, parts: FleetParts) -> None:
        """Connect to nothing yet."""
        metrics = FollowMetrics(parts.registry)
        services, models, runner = parts.services, parts.models, parts.runner
        for device in services.devices:
            metrics.add_device(device.name)
        self.notifications = Notifications(parts.database, parts.poll_seconds)
        self._same_speed = SameSpeed(services, models, metrics)
        loads = Loads(services, models)
        self._reconciler = Reconciler(models, runner, parts.turns, loads, metrics)
        self._following = Following(self._reconciler, metrics, parts.poll_seconds)
        self._leases = parts.leases
        self._claims = ClaimLoop(runner, parts.leases.seconds, parts.poll_seconds)
        self.notifications.subscribe(self._following.hear)
        self.notifications.subscribe(self._hear_of_jobs)
        self._background = BackgroundTasks("fleet")

    def start(self) -> None:
        """Begin to follow; the models that served before serve already."""
        work: tuple[Coroutine[Any, Any, None], ...] = (
            self.notifications.run(),
            self._following.run(),
            self._claims.run(),
            self._same_speed.run(),
        )
        for each in work:
            self._background.start(each)

    async def stop(self) -> None:
        """Stop following."""
        self._background.cancel()
        await self._background.ended()

    def _hear_of_jobs(self, change: Change) -> None:
        """Look at jobs of other nodes: whoever watches one, and what is to be taken over."""
        self._leases.notified()
        if change.what in OF_JOBS:
            self._claims.wake()

    async def catch_up(self, name: str, *, has_turn: bool = False) -> None:
        """Let a model be as it is stored before a call changes it.

        Raises:
            StoreUnavailable: the database is away.
        """
        await self._reconciler.catch_up(name, has_turn=has_turn)

    def taken_over(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Take a schedule that serves here and was found in the store."""
        self._same_speed.taken_over(model, device, schedule)
