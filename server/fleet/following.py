"""Makes what this node serves equal to what the database says.

    notification ──┐
    poll ──────────┼──> look: wanted state of all names ──differs──> one task a name, with its turn:
    failed load ───┘                             load what is missing ──> the other steps, in order

Each look compares all names with the database, so a lost notification costs time only, and every
step may run twice. A new version serves before the old one stops; while files or devices are away,
the old one serves on. Versions that a job of this node works on are left to that job. None of this
is on the path of an inference: while the database is away everything serves on as it does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from weakref import WeakKeyDictionary

from braid.core.background import to_the_end
from braid.core.errors import BraidError, InvalidArtefact, PreconditionFailed
from braid.core.schedule import ScheduleKey
from braid.server.fleet.loads import Loads
from braid.server.fleet.metrics import FollowMetrics
from braid.server.fleet.notifications import Change
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables.wanted import WantedState
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.registration import promote
from braid.server.jobs.runner import JobRunner
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import ServingConfig

log = logging.getLogger("braid.fleet")

DEFAULT = ServingConfig()

LOOKED_AT = ("", "models", "serving", "schedules")
"""Changes after which a node looks; of jobs only while one of its own is in the way."""

GATHER_S = 0.05
"""Seconds in which further notifications belong to the same look."""

LEAST_S = 0.5
"""Least seconds between two looks that nothing but a failed load asks for."""

AWAY_S = 1.0
"""Seconds between two looks while the database is away."""

AT_ONCE = 32
"""Names that are compared without a pause: there may be thousands."""

Step = Callable[[], Awaitable[object] | None]


class Following:
    """Follows the database. Belongs to the event loop."""

    def __init__(
        self,
        store: FleetStore,
        models: ServingModels,
        jobs: JobRunner,
        loads: Loads,
        metrics: FollowMetrics,
    ) -> None:
        self._store = store
        self._services = loads.services
        self._models = models
        self._jobs = jobs
        self._loads = loads
        self._metrics = metrics
        self._heard = asyncio.Event()
        self._made_at: float | None = None  # of the oldest change heard since the last look
        self._looked_at: float | None = None  # begin of the last look that was answered
        self._is_away = False
        self._waits_for_jobs = False  # a version is not as wanted that a job of this node works on
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: set[str] = set()  # names that differ, whose task has not begun with them
        self._since: dict[str, float | None] = {}  # by name: its oldest change not applied yet
        # By replica and key: when the schedule was stored that was looked at last.
        self._stored_at: WeakKeyDictionary[ModelReplica, dict[ScheduleKey, float]] = (
            WeakKeyDictionary()
        )

    # When to look.

    def hear(self, change: Change) -> None:
        """Look soon if a change may be one that this node follows."""
        if change.what in LOOKED_AT or self._waits_for_jobs:
            if change.made_at is not None and self._made_at is None:
                self._made_at = change.made_at
            self._heard.set()

    async def run(self, poll_seconds: float) -> None:
        """Look until cancelled, at least every ``poll_seconds``."""
        try:
            while True:
                await self._try_to_look()
                pause_s = AWAY_S if self._is_away else poll_seconds
                if (next_s := self._loads.next_s) is not None:
                    pause_s = min(pause_s, max(next_s, LEAST_S))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._heard.wait()
                await asyncio.sleep(GATHER_S)
        finally:
            await self.stop()

    async def _try_to_look(self) -> None:
        """Look once; a change that no notification told is no older than the look before."""
        self._heard.clear()
        made_at = self._looked_at if self._made_at is None else self._made_at
        self._made_at, began = None, monotonic()
        try:
            await self.look(made_at)
        except Exception as error:
            if not isinstance(error, BraidError):
                log.exception("the database is not followed")
            elif not self._is_away:
                log.warning("the database is not followed", extra={"reason": str(error)})
            self._is_away = True
        else:
            if self._is_away:
                log.info("the database is followed again")
            self._is_away, self._looked_at = False, began
        self._metrics.looked(not self._is_away)

    async def look(self, made_at: float | None = None) -> None:
        """Read what is wanted and begin to make it so; returns before that is done.

        ``made_at`` is when, on the monotonic clock, the oldest of the changes was made at least.
        Raises BraidError: the database cannot be read.
        """
        recorded = self._models.records()  # before the database is read: both may change
        wanted = await self._read(None)
        self._loads.keep(wanted.models)
        self._waits_for_jobs = False
        names = {*recorded, *wanted.models, *wanted.configs, *self._models.configs()}
        for count, name in enumerate(names):
            if self._differs(name, recorded.get(name, {}), wanted):
                self._begin(name, made_at)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def catch_up(self, name: str, *, has_turn: bool = False) -> None:
        """Make one name as the database says; returns when that is done, or cannot be done now.

        ``has_turn`` says that the caller has the turn of the name. Raises BraidError: the database
        cannot be read.
        """
        await to_the_end(self._follow(name) if has_turn else self._in_turn(name))

    async def settled(self) -> None:
        """Wait until all that was begun has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def stop(self) -> None:
        self._due.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str, made_at: float | None) -> None:
        self._since.setdefault(name, made_at)
        self._due.add(name)
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._keep_up(name), name=f"follow-{name}")

    async def _keep_up(self, name: str) -> None:
        """Follow one name while it is due; what fails is tried again at a later look."""
        try:
            while name in self._due:
                self._due.discard(name)
                try:
                    is_done = await self._in_turn(name)
                except Exception as error:
                    self._metrics.failed()
                    is_bug = not isinstance(error, BraidError)
                    level = logging.ERROR if is_bug else logging.WARNING
                    facts = {"model": name, "reason": str(error)}
                    log.log(level, "not followed", extra=facts, exc_info=is_bug)
                else:
                    if is_done:
                        since = self._since.pop(name, None)
                        self._metrics.applied(None if since is None else monotonic() - since)
        finally:
            del self._tasks[name]

    # What to do.

    async def _in_turn(self, name: str) -> bool:
        async with self._models.turns.of(name):
            return await self._follow(name)

    async def _follow(self, name: str) -> bool:
        """Make one name as the database says; False: a load has to be tried again."""
        had = {model.artefact for model in self._models.records().get(name, {}).values()}
        while True:
            recorded = self._models.records().get(name, {})
            wanted = await self._read(name)
            rows = wanted.models.get(name, {}).values()
            for row in filter(self._is_replaced, rows):
                await self._jobs.cancel_outdated(row)
            missing = [row for row in rows if self._is_missing(row)]
            if not missing:
                break
            await asyncio.gather(*map(self._loads.load, missing))
        for step in self._steps(name, recorded, wanted):
            if (work := step()) is not None:
                await work
        await self._discard(had - {row.artefact for row in rows})
        others = [row for row in rows if not self._is_own(row)]
        if any(self._lacks_schedules(row, wanted) for row in others):
            await self._services.registry.add_missing_jobs()
        return all(self._answers(row) for row in others if row.state is ModelStatus.SERVING)

    def _differs(
        self, name: str, recorded: Mapping[int, ModelVersion], wanted: WantedState
    ) -> bool:
        """True if something is to be done for a name; ``recorded`` is older than ``wanted``."""
        rows = wanted.models.get(name, {}).values()
        self._waits_for_jobs |= any(
            self._is_own(row) and (row.state is ModelStatus.SERVING) != self._answers(row)
            for row in rows
        )
        return (
            any(self._is_replaced(row) or self._is_missing(row) for row in rows)
            or next(self._steps(name, recorded, wanted), None) is not None
        )

    def _steps(
        self, name: str, recorded: Mapping[int, ModelVersion], wanted: WantedState
    ) -> Iterator[Step]:
        """Yield what makes a name as wanted, once nothing of it is to be loaded."""
        rows = wanted.models.get(name, {})
        for number in recorded.keys() - rows.keys():
            if self._models.record(name, number) is not None:
                yield partial(self._remove, name, number)
        config = wanted.configs.get(name, DEFAULT)
        if self._models.config(name) != config:
            yield partial(self._models.configure, name, config)
        others = [row for row in rows.values() if not self._is_own(row)]
        is_delayed = any(self._is_delayed(row) for row in others)
        for row in others:
            serves = self._models.served_version(name, row.version) is not None
            # What is damaged elsewhere may be sound here.
            if serves and row.state not in (ModelStatus.SERVING, ModelStatus.DAMAGED):
                if not is_delayed:
                    yield partial(self._models.unload, row)
            elif not serves or self._answers(row):  # else other bytes, until these can be loaded
                if self._models.record(name, row.version) != row:
                    yield partial(self._models.register, row)
                for replica, key, stored_at in self._new_schedules(row, wanted):
                    yield partial(self._use, replica, key, stored_at)

    def _is_own(self, row: ModelVersion) -> bool:
        return self._jobs.is_working_on(row.name, row.version)

    def _is_replaced(self, row: ModelVersion) -> bool:
        """True if a job of this node works on what a version that serves was before."""
        return row.state is ModelStatus.SERVING and self._jobs.has_outdated(row)

    def _is_missing(self, row: ModelVersion) -> bool:
        """True if a version is to be loaded now."""
        is_wanted = row.state is ModelStatus.SERVING and not self._is_own(row)
        return is_wanted and not self._answers(row) and self._loads.is_due(row)

    def _is_delayed(self, row: ModelVersion) -> bool:
        """True if a version that is to answer will soon, once its files or its device are back."""
        is_wanted = row.state is ModelStatus.SERVING
        return is_wanted and not self._answers(row) and self._loads.is_delayed(row)

    def _answers(self, row: ModelVersion) -> bool:
        """True if these bytes and options answer, once a request loads them if they are away."""
        record = self._models.record(row.name, row.version)
        if record is not None and self._models.is_away(row.name, row.version):
            return record.is_same(row)
        replicas = self._models.served_version(row.name, row.version)
        return replicas is not None and replicas.any.model.is_same(row)

    def _replicas(self, row: ModelVersion) -> list[ModelReplica]:
        served = self._models.served_version(row.name, row.version)
        return [] if served is None else [queued.replica for queued in served.all]

    def _lacks_schedules(self, row: ModelVersion, wanted: WantedState) -> bool:
        """True if a version answers on a device of a type that it has no schedule for."""
        replicas = self._replicas(row) if self._answers(row) else []
        ids = {key.id for replica in replicas for key in replica.schedule_keys}
        return not ids <= wanted.schedules.keys()

    def _new_schedules(
        self, row: ModelVersion, wanted: WantedState
    ) -> Iterator[tuple[ModelReplica, ScheduleKey, float]]:
        """Yield each stored schedule of a version that was not looked at yet, and its time."""
        for replica in self._replicas(row):
            seen = self._stored_at.get(replica, {})
            for key in (*replica.schedule_keys, *replica.larger_keys):
                stored_at = wanted.schedules.get(key.id)
                if stored_at is not None and stored_at != seen.get(key):
                    yield replica, key, stored_at

    async def _remove(self, name: str, number: int) -> None:
        if self._jobs.is_working_on(name, number):
            await self._jobs.cancel_model(name, number)
        await self._models.remove(name, number)

    async def _discard(self, keys: set[str]) -> None:
        """Remove artefacts from this node that no version has or answers with."""
        store = self._store
        for key in keys - {replica.digest for replica in self._models.all_served()}:
            await store.call(store.discard_artefact, key)

    async def _use(self, replica: ModelReplica, key: ScheduleKey, stored_at: float) -> None:
        services = self._services
        schedule = await services.store.call(services.store.find_schedule, key)
        if schedule is not None and not replica.has_chosen(schedule):
            facts = {"model": replica.name, "version": replica.version, "size": key.batch_size}
            try:
                await promote(replica.model, replica.device, schedule, services, services.retry())
            except (InvalidArtefact, PreconditionFailed) as error:
                reason = {**facts, "reason": str(error)}
                log.warning("a stored schedule does not serve", extra=reason)
            else:
                log.info("serves a schedule of another node", extra=facts)
        self._stored_at.setdefault(replica, {})[key] = stored_at

    def _read(self, name: str | None) -> Awaitable[WantedState]:
        keys = [device.device_key for device in self._services.devices]
        return self._store.call(self._store.wanted, keys, name)
