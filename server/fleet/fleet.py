"""One node among the servers that share a store: its leases, files and jobs, and what it follows.

    front end ──> Fleet ──> files, registry          what a single server has of its own
                        ──> Notifications ──> Following ──> models of this node

Loaded only by servers whose settings say that there may be others. Importing it raises StartupError
where ``obstore`` is missing.
"""

import socket
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy import URL

from braid.core.background import BackgroundTasks
from braid.core.errors import StartupError
from braid.server.fleet.following import Following
from braid.server.fleet.leases import Leases
from braid.server.fleet.loads import Loads
from braid.server.fleet.metrics import FileMetrics, FollowMetrics, NodeMetrics
from braid.server.fleet.notifications import ANYTHING, Change, Notifications
from braid.server.fleet.registry import FleetRegistry
from braid.server.fleet.store import FleetStore
from braid.server.jobs.services import JobServices
from braid.server.models.serving_models import ServingModels
from braid.server.settings import Settings
from braid.server.store.records import NodeRecord
from braid_client.version import __version__

try:
    from braid.server.fleet.files.cache import FileCache
    from braid.server.fleet.files.object_files import ObjectFiles
    from braid.server.fleet.files.place import open_place
except ImportError as error:
    raise StartupError(
        f"shared files need obstore ({error}): pip install 'braid-serve[fleet]'"
    ) from error

OF_JOBS = (ANYTHING, "jobs", "nodes")
"""Changes after which there may be a job to take over, or to end."""


class Fleet:
    """This node among the others. Belongs to the event loop."""

    def __init__(
        self,
        settings: Settings,
        store: FleetStore,
        metrics: CollectorRegistry,
        serving_digests: Callable[[], Collection[str]],
    ) -> None:
        """Connect to nothing yet; ``serving_digests`` are those of files that stay cached.

        Raises StartupError: the shared files cannot be used as they are set.
        """
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._leases = Leases(store, settings.lease_seconds, NodeMetrics(metrics))
        self.registry = FleetRegistry(store, self._leases)
        place = open_place(settings.files, settings.files_credentials_file)
        cache_bytes = settings.max_cache_bytes or settings.max_store_bytes // 2
        of_files = FileMetrics(metrics)
        cache = FileCache(store.folder, cache_bytes, serving_digests, of_files)
        grace_s = settings.files_grace_seconds
        self.files = ObjectFiles(place, store, cache, of_files, grace_s)
        self._following: Following
        self._work: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
        self._background = BackgroundTasks("fleet")

    def follow(self, database: URL, services: JobServices, models: ServingModels) -> None:
        poll_s = self._settings.lease_seconds
        loads = Loads(services, models)
        metrics, runner = FollowMetrics(self._metrics), self.registry.runner
        following = Following(self._store, models, runner, loads, metrics)
        self._following = following
        notifications = Notifications(database, poll_s)
        notifications.subscribe(following.hear)
        notifications.subscribe(self._hear_of_jobs)
        self._work = notifications.run, partial(following.run, poll_s), self.registry.run

    async def join(self, device_keys: str, grpc_port: int) -> None:
        """Become one of the nodes. Unavailable: the database is away."""
        settings = self._settings
        address = settings.node_address or f"{socket.gethostname()}:{grpc_port}"
        await self._leases.start(NodeRecord(settings.node_name, address, device_keys, __version__))

    def start(self) -> None:
        """Begin to follow; the models that served before serve already."""
        for run in self._work:
            self._background.start(run())

    async def stop(self) -> None:
        self._background.cancel()
        await self._background.ended()

    async def leave(self) -> None:
        """Let other nodes have what this one worked on; its jobs are stopped before."""
        await self._leases.stop()

    def _hear_of_jobs(self, change: Change) -> None:
        """Look at jobs of other nodes: whoever watches one, and what is to be taken over."""
        self._leases.notified()
        if change.what in OF_JOBS:
            self.registry.wake()

    async def catch_up(self, name: str, has_turn: bool) -> None:
        """Let a model be as it is stored before a call changes it.

        Raises StoreUnavailable: the database is away.
        """
        await self._following.catch_up(name, has_turn=has_turn)
