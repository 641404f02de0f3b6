"""What a server shares with others, if anything: leases, files, and following their changes.

front end ──> Membership ──a fleet──> Leases, Fleet, sweeps     loaded only then
                  └────────always──> SharedFiles: the store's folder, if it is alone
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from sqlalchemy import URL

from braid.core.schedule import Schedule
from braid.server.jobs.runner import JobRunner
from braid.server.jobs.services import JobServices
from braid.server.models.loading import ModelLoader
from braid.server.models.serving_models import ServingModels
from braid.server.observability.series.files import FileMetrics
from braid.server.observability.series.nodes import NodeMetrics
from braid.server.settings import Settings
from braid.server.store.fleet.leases import NodeRecord
from braid.server.store.records import ModelVersion
from braid.server.store.shared_files.opening import open_files
from braid.server.store.store import Store
from braid_client.version import __version__

if TYPE_CHECKING:
    from braid.server.fleet.fleet import Fleet
    from braid.server.fleet.leases import Leases


class Membership:
    """This server among those that share its store. Belongs to the event loop."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: CollectorRegistry,
        serving_digests: Callable[[], Collection[str]],
    ) -> None:
        """Connect to nothing yet; ``serving_digests`` are those of files that stay cached.

        Raises:
            StartupError: the shared files cannot be used as they are set.
        """
        self._settings = settings
        self._store = store
        self._registry = registry
        self.leases = self._make_leases()
        self.files = open_files(
            settings.files,
            store,
            lambda: FileMetrics(registry),
            serving_digests,
            credentials=settings.files_credentials_file,
            cache_bytes=settings.max_cache_bytes or settings.max_store_bytes // 2,
            grace_s=settings.files_grace_seconds,
            may_sweep=self._sweeps(),
        )
        self._fleet: Fleet | None = None

    def _make_leases(self) -> Leases | None:
        if not self._settings.is_fleet:
            return None
        from braid.server.fleet.leases import Leases

        return Leases(self._store, self._settings.lease_seconds, NodeMetrics(self._registry))

    def _sweeps(self) -> Callable[[], Awaitable[bool]] | None:
        """Return what asks whether this is the node that sweeps the shared files."""
        if self.leases is None:
            return None
        from braid.server.fleet.standing import StandingTask

        return StandingTask(self.leases, "sweep").is_ours

    def join(
        self,
        database: URL | None,
        services: JobServices,
        models: ServingModels,
        runner: JobRunner,
        loader: ModelLoader,
    ) -> None:
        """Make what follows the other servers of a fleet; ``start_following`` begins it."""
        if self.leases is None or database is None:
            return
        from braid.server.fleet.fleet import Fleet, FleetParts

        parts = FleetParts(
            database,
            self._settings.poll_seconds,
            services,
            models,
            runner,
            loader.turns,
            self.leases,
            self._registry,
        )
        self._fleet = Fleet(parts)

    async def start_leases(self, device_keys: str, grpc_port: int) -> None:
        """Become one of the nodes, if there are others.

        Raises:
            Unavailable: the database is away.
        """
        if self.leases is not None:
            settings = self._settings
            address = settings.node_address or f"{socket.gethostname()}:{grpc_port}"
            node = NodeRecord(settings.node_name, address, device_keys, __version__)
            await self.leases.start(node)

    def start_following(self) -> None:
        """Begin to follow the other servers; the models that served before serve already."""
        if self._fleet is not None:
            self._fleet.start()

    async def stop_following(self) -> None:
        """Stop following the other servers."""
        if self._fleet is not None:
            await self._fleet.stop()

    async def stop_leases(self) -> None:
        """Let other servers have what this one worked on; its jobs are stopped before."""
        if self.leases is not None:
            await self.leases.stop()

    async def catch_up(self, name: str, *, has_turn: bool = False) -> None:
        """Let a model be as it is stored before a call changes it.

        Raises:
            StoreUnavailable: the database is away.
        """
        if self._fleet is not None:
            await self._fleet.catch_up(name, has_turn=has_turn)

    def taken_over(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Take a schedule that serves and was found in the store."""
        if self._fleet is not None:
            self._fleet.taken_over(model, device, schedule)
