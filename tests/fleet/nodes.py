"""Nodes of jobs over fakes: real store, leases and beats on a real PostgreSQL, a made-up device."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry
from sqlalchemy import make_url

from braid.server.fleet.files.cache import FileCache
from braid.server.fleet.files.object_files import ObjectFiles
from braid.server.fleet.files.place import open_place
from braid.server.fleet.leases import Leases
from braid.server.fleet.metrics import NodeMetrics
from braid.server.fleet.registry import FleetRegistry
from braid.server.fleet.store import FleetStore
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import NodeRecord
from tests.server.fleet.files.nodes import Observed
from tests.server.jobs.fakes import Server

LEASE_SECONDS = 1.0


class Node(Server):
    """One of several servers of jobs on the same database."""

    store: FleetStore

    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        *,
        device_key: str = "fake-cpu",
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(folder / name, make_url(url), FleetStore)
        self.name = name
        self.device.device_key = device_key
        self.counts = NodeMetrics(CollectorRegistry())
        self.leases = Leases(self.store, lease_seconds, self.counts)
        self.seen = Observed()
        place, cache = (
            open_place(str(folder / "shared")),
            FileCache(self.store.folder, 0, set, self.seen),
        )
        files = ObjectFiles(place, self.store, cache, self.seen, grace_s=3600.0)
        self.registry = FleetRegistry(self.store, self.leases)
        self.services = replace(self.services, registry=self.registry, files=files)
        self.runner = JobRunner(self.services)
        self.is_over = self.is_dead = False
        self._claiming: asyncio.Task[None] | None = None

    async def start(self) -> Node:
        record = NodeRecord(self.name, f"{self.name}:1", self.device.device_key, "0")
        await self.leases.start(record)
        await self.runner.start()
        self._claiming = asyncio.create_task(self.registry.run())
        return self

    async def stop(self) -> None:
        """End as told: other nodes have the jobs at once."""
        await self._end_tasks()
        await self.leases.stop()
        self.store.close()

    def is_suspended(self) -> bool:
        """Whether no job is worked on here."""
        return all(live.task is None or live.task.done() for live in self.runner.running)

    def make_due(self) -> None:
        """Let a day go by since the last jobs ended."""
        aged = "update leases set expires_at = expires_at - 86400"
        self.store.database.write(lambda connection: connection.exec_driver_sql(aged))

    async def die(self) -> None:
        """End as by kill -9: nothing is released."""
        await self._end_tasks()
        await self.leases.fall_silent()
        self.is_dead = True  # its store is closed by the fixture

    async def _end_tasks(self) -> None:
        self.is_over = True
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
        await self.runner.stop()
