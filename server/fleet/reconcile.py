"""Makes what this node serves equal to what the database says.

    look ──> wanted state of all names ──differs──> one task a name, with the turn of the name:
                 wanted state of the name ─> load what is missing, and look again
                                          ─> labels and batching ─> unload, remove ─> schedules

Each look compares all names with the database, so a lost notification costs time only, and every
step may run twice. A new version serves before the old one stops; while files or devices are away,
the old one serves on. Versions that a job of this node works on are left to that job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from time import monotonic

from braid.core.background import to_the_end
from braid.core.errors import BraidError, InvalidArtefact, PreconditionFailed
from braid.core.keyed_locks import KeyedLocks
from braid.server.fleet.differences import DEFAULT, Differences, StoredSchedule
from braid.server.fleet.loads import Loads
from braid.server.fleet.metrics import FollowMetrics
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables.wanted import WantedState
from braid.server.inference.replica import ScheduleMark
from braid.server.jobs.registration import promote
from braid.server.jobs.runner import JobRunner
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelStatus, ModelVersion

log = logging.getLogger("braid.fleet")


class Reconciler:
    """Follows the database, one task a name. Belongs to the event loop."""

    def __init__(
        self,
        store: FleetStore,
        models: ServingModels,
        jobs: JobRunner,
        turns: KeyedLocks,
        loads: Loads,
        followed: FollowMetrics,
    ) -> None:
        """Begin nothing yet; ``turns`` are those of ``ModelLoader``."""
        self._store = store
        self._services = loads.services
        self._models = models
        self._jobs = jobs
        self._turns = turns
        self._loads = loads
        self._differences = Differences(models, jobs, loads)
        self._followed = followed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # names with changes that came after their task began
        self._since: dict[str, float | None] = {}  # by name: its oldest change not applied yet

    async def look(self, made_at: float | None = None) -> None:
        """Read what is wanted and begin to make it so; returns before that is done.

        ``made_at`` is when, on the monotonic clock, the oldest of the changes was made at least.

        Raises:
            BraidError: the database cannot be read.
        """
        recorded = self._models.records()
        wanted = await self._read(None)
        self._loads.keep(lambda row: _is_wanted(row, wanted))
        async for name in self._differences.differing(recorded, wanted):
            self._begin(name, made_at)

    @property
    def waits_for_jobs(self) -> bool:
        """True if a version is not as wanted that a job of this node works on."""
        return self._differences.waits_for_jobs

    @property
    def next_load_s(self) -> float | None:
        """Seconds until a load that failed is to be tried again; None: none has failed."""
        return self._loads.next_s

    async def catch_up(self, name: str, *, has_turn: bool = False) -> None:
        """Make one name as the database says; returns when that is done, or cannot be done now.

        ``has_turn`` says that the caller has the turn of the name.

        Raises:
            BraidError: the database cannot be read.
        """
        await to_the_end(self._follow(name) if has_turn else self._in_turn(name))

    async def settled(self) -> None:
        """Wait until all that was begun has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def stop(self) -> None:
        self._again.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str, made_at: float | None) -> None:
        self._since.setdefault(name, made_at)
        if name in self._tasks:
            self._again.add(name)
            return
        task = asyncio.create_task(self._try(name), name=f"follow-{name}")
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._ended(name))

    def _ended(self, name: str) -> None:
        del self._tasks[name]
        if name in self._again:
            self._again.discard(name)
            self._begin(name, None)

    async def _try(self, name: str) -> None:
        """Follow one name; what fails is tried again at a later look."""
        try:
            is_done = await self._in_turn(name)
        except BraidError as error:
            self._followed.failed()
            log.warning("not followed", extra={"model": name, "reason": str(error)})
        except Exception:
            self._followed.failed()
            log.exception("not followed", extra={"model": name})
        else:
            if is_done:
                since = self._since.pop(name, None)
                self._followed.applied(None if since is None else monotonic() - since)

    async def _in_turn(self, name: str) -> bool:
        async with self._turns.of(name):
            return await self._follow(name)

    async def _follow(self, name: str) -> bool:
        """Make one name as the database says; False: a load has to be tried again."""
        had = {model.artefact for model in self._models.records().get(name, {}).values()}
        while True:
            recorded = self._models.records().get(name, {})
            wanted = await self._read(name)
            rows = wanted.models.get(name, {})
            for row in filter(self._differences.is_replaced, rows.values()):
                await self._jobs.cancel_outdated(row)
            missing = [row for row in rows.values() if self._differences.is_missing(row)]
            if not missing:
                break
            await asyncio.gather(*map(self._loads.load, missing))
        for number in recorded.keys() - rows.keys():
            if self._jobs.is_working_on(name, number):
                await self._jobs.cancel_model(name, number)
            await self._models.remove(name, number)
        config = wanted.configs.get(name, DEFAULT)
        if self._models.config(name) != config:
            self._models.configure(name, config)
        await self._discard(had - {row.artefact for row in rows.values()})
        others = [row for row in rows.values() if not self._differences.is_own(row)]
        is_delayed = any(map(self._differences.is_delayed, others))
        for row in others:
            if not (is_delayed and self._differences.is_surplus(row)):
                await self._apply(row, wanted)
        if any(self._differences.lacks_schedules(row, wanted) for row in others):
            await self._services.registry.add_missing_jobs()
        return all(
            self._differences.answers(row) for row in others if row.state is ModelStatus.SERVING
        )

    async def _discard(self, keys: set[str]) -> None:
        """Remove artefacts from this node that no version has or answers with."""
        store = self._services.store
        for key in keys - {replica.digest for replica in self._models.all_served()}:
            await store.call(store.discard_artefact, key)

    async def _apply(self, row: ModelVersion, wanted: WantedState) -> None:
        """Record a version as it is stored; end its replicas, or let its schedules serve."""
        if self._differences.is_surplus(row):
            await self._models.unload(row)
            return
        answers = self._models.served_version(row.name, row.version) is not None
        if answers and not self._differences.answers(row):  # other bytes, until these can be loaded
            return
        if self._models.record(row.name, row.version) != row:
            self._models.register(row)
        for stored in list(self._differences.new_schedules(row, wanted)):
            await self._use(stored)
            self._differences.seen(stored)

    async def _use(self, stored: StoredSchedule) -> None:
        """Let a stored schedule serve, unless it does."""
        services, replica, key = self._services, stored.replica, stored.key
        device = replica.device
        schedule = await services.store.call(services.store.find_schedule, key)
        if schedule is None or replica.chosen.get(key) == ScheduleMark.of(schedule):
            return
        facts = {"model": replica.name, "version": replica.version, "size": key.batch_size}
        try:
            await promote(replica.model, device, schedule, services, services.retry())
        except (InvalidArtefact, PreconditionFailed) as error:
            log.warning("a stored schedule does not serve", extra={**facts, "reason": str(error)})
        else:
            log.info("serves a schedule of another node", extra=facts)

    def _read(self, name: str | None) -> Awaitable[WantedState]:
        keys = [device.device_key for device in self._services.devices]
        return self._store.call(self._store.wanted, keys, name)


def _is_wanted(row: ModelVersion, wanted: WantedState) -> bool:
    """True if a version is to answer with these bytes and options."""
    stored = wanted.models.get(row.name, {}).get(row.version)
    return stored is not None and stored.state is ModelStatus.SERVING and stored.is_same(row)
