"""Nodes of a fleet in one process: real stores on one database, real serving models, fake devices.

SQLite takes PostgreSQL's place, and nothing is notified: a test says when a node looks.
"""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from sqlalchemy import URL

from braid.core.errors import DamagedArtefact
from braid.server.devices.pool import Devices
from braid.server.fleet.following import Following
from braid.server.fleet.loads import Loads
from braid.server.fleet.metrics import FollowMetrics
from braid.server.fleet.records import SharedFilesAway
from braid.server.fleet.store import FleetStore
from braid.server.jobs.registry import Registry
from braid.server.jobs.runner import JobRunner
from braid.server.models.loading import ModelLoader
from braid.server.models.policies import VersionPolicies
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.store.records import JobStatus, ModelVersion, Registration
from braid.server.store.serving_config import BatchPolicy
from braid.server.store.shared_files import ARTEFACT, FileKind, Files
from tests.server.jobs.fakes import Server, a_moment
from tests.server.models.test_name_turns import KeepingDevice
from tests.server.store.shared_sqlite import let_others_open


class Counted(FollowMetrics):
    def __init__(self) -> None:
        self.lags_s: list[float | None] = []
        self.looks: list[bool] = []  # whether the database answered
        self.failures = 0

    def looked(self, is_done: bool) -> None:
        self.looks.append(is_done)

    def applied(self, lag_s: float | None) -> None:
        self.lags_s.append(lag_s)

    def failed(self) -> None:
        self.failures += 1


class CopiedFiles(Files):
    """Artefacts of all nodes, by digest, in a folder that they share."""

    def __init__(self, shared: Path, own: Path) -> None:
        self._shared, self._own = shared, own
        self.before_fetching: Callable[[], Awaitable[object]] = a_moment
        self.is_damaged = False
        self.is_away = False

    async def keep_artefact(self, sha256: str) -> None:
        shutil.copytree(self._own / sha256, self._shared / sha256, dirs_exist_ok=True)

    async def fetch(self, kind: FileKind, digest: str) -> None:
        if kind is not ARTEFACT:
            return
        await self.before_fetching()
        if self.is_away:
            raise SharedFilesAway
        if self.is_damaged:
            raise DamagedArtefact("graph.json was changed")
        if (self._shared / digest).is_dir():
            shutil.copytree(self._shared / digest, self._own / digest, dirs_exist_ok=True)


class Node:
    """One node: it registers, configures and deletes as a server does, and follows others."""

    def __init__(self, name: str, folder: Path, database: URL | None = None) -> None:
        """Open the database, None: in ``folder``, and a store of its own beside it."""
        url = database or URL.create("sqlite", database=str(folder / "fleet.sqlite"))
        let_others_open(url)
        server = self.server = Server(folder / name, url, FleetStore)
        assert isinstance(server.store, FleetStore)
        self.store = server.store
        self.device = KeepingDevice()
        found = SimpleNamespace(all=[self.device], named=lambda _: self.device)
        self.models = ServingModels(
            cast(Devices, found), Metrics(), BatchPolicy(), on_version=self._version_serves
        )
        self.files = CopiedFiles(folder / "shared", server.store.folder.artefacts)
        services = self.services = replace(
            server.services,
            devices=[self.device],
            models=self.models,
            files=self.files,
            registry=Registry(),
        )
        runner = self.runner = server.runner = JobRunner(services)
        self.loader = ModelLoader(self.store, runner, self.models, 1000, self._catch_up)
        self.policies = VersionPolicies(self.store, self.models, self.loader)
        self.clock_s = 0.0
        self.followed = Counted()
        self.loads = Loads(services, self.models, lambda: self.clock_s)
        self.following = Following(self.store, self.models, runner, self.loads, self.followed)

    def _version_serves(self, name: str, version: int) -> None:
        if self.runner.is_working_on(name, version):
            self.policies.version_serves(name)

    async def _catch_up(self, name: str, has_turn: bool) -> None:
        await self.following.catch_up(name, has_turn=has_turn)

    async def start(self) -> None:
        await self.policies.restore()
        await self.runner.start()

    async def stop(self) -> None:
        await self.following.stop()
        await self.server.stop()

    async def look(self) -> None:
        """Look, and wait until what was begun has ended."""
        await self.following.look()
        await self.following.settled()

    async def register(self, name: str, content: bytes, **options: object) -> Registration:
        """Register, and wait for the end of the job."""
        made = await self.server.register(name, content, **options)  # type: ignore[arg-type]
        async for job in self.runner.watch(made.job.id):
            assert job.state is not JobStatus.FAILED, job
        return made

    def version(self, name: str, number: int) -> ModelVersion:
        """What is recorded of a version that there is."""
        found = self.models.record(name, number)
        assert found is not None
        return found

    @property
    def answering(self) -> set[tuple[str, int]]:
        """Names and versions that answer."""
        return {(each.name, each.version) for each in self.models.all_served()}
