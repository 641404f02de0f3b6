"""What of the models of this node is not as the database says.

wanted state (database) ──┐
models that answer ───────┼──> missing, surplus, schedules not looked at yet
jobs of this node ────────┘    versions of such a job are left out: the job makes them so
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from braid.core.schedule import ScheduleKey
from braid.server.fleet.loads import Loads
from braid.server.fleet.tables.wanted import WantedState
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.runner import JobRunner
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import ServingConfig

DEFAULT = ServingConfig()

AT_ONCE = 32
"""Names that are compared without a pause."""


class StoredSchedule(NamedTuple):
    """Schedule in the database of a model that answers here."""

    replica: ModelReplica
    key: ScheduleKey
    stored_at: float


class Differences:
    """Compares what is wanted with what answers. Belongs to the event loop."""

    def __init__(self, models: ServingModels, jobs: JobRunner, loads: Loads) -> None:
        self._models = models
        self._jobs = jobs
        self._loads = loads
        self.waits_for_jobs = False
        """A version is not as wanted that a job of this node works on."""
        # By replica and key: when the schedule was stored that was looked at last.
        self._stored_at: WeakKeyDictionary[ModelReplica, dict[ScheduleKey, float]] = (
            WeakKeyDictionary()
        )

    async def differing(
        self, recorded: Mapping[str, Mapping[int, ModelVersion]], wanted: WantedState
    ) -> AsyncIterator[str]:
        """Yield the names that are not as wanted; ``recorded`` is older than ``wanted``.

        Lets others go on now and then: there may be thousands of names.
        """
        self.waits_for_jobs = False
        names = {*recorded, *wanted.models, *wanted.configs, *self._models.configs()}
        for count, name in enumerate(names):
            if self._differs(name, recorded.get(name, {}), wanted):
                yield name
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _differs(
        self, name: str, recorded: Mapping[int, ModelVersion], wanted: WantedState
    ) -> bool:
        """True if a name is not as wanted; ``recorded`` is older than ``wanted``."""
        rows = wanted.models.get(name, {})
        return (
            self._models.config(name) != wanted.configs.get(name, DEFAULT)
            or any(self._models.record(name, number) for number in recorded.keys() - rows.keys())
            or any(self._row_differs(row, wanted) for row in rows.values())
        )

    def _row_differs(self, row: ModelVersion, wanted: WantedState) -> bool:
        if self.is_own(row):
            is_wanted = row.state is ModelStatus.SERVING
            self.waits_for_jobs |= is_wanted != self.answers(row)
            return self.is_replaced(row)
        is_recorded = self._models.record(row.name, row.version) == row
        if row.state is not ModelStatus.SERVING:
            return not is_recorded or self.is_surplus(row)
        if not self.answers(row):
            return self._loads.is_due(row)
        return not is_recorded or any(self.new_schedules(row, wanted))

    def is_replaced(self, row: ModelVersion) -> bool:
        """True if a job of this node works on what a version that serves was before."""
        return row.state is ModelStatus.SERVING and self._jobs.has_outdated(row)

    def is_missing(self, row: ModelVersion) -> bool:
        """True if a version is to be loaded now."""
        is_wanted = row.state is ModelStatus.SERVING and not self.is_own(row)
        return is_wanted and not self.answers(row) and self._loads.is_due(row)

    def is_delayed(self, row: ModelVersion) -> bool:
        """True if a version that is to answer will soon, once its files or its device are back."""
        is_wanted = row.state is ModelStatus.SERVING
        return is_wanted and not self.answers(row) and self._loads.is_delayed(row)

    def is_surplus(self, row: ModelVersion) -> bool:
        """True if a version answers that is not to; one damaged elsewhere may be sound here."""
        is_wanted = row.state in (ModelStatus.SERVING, ModelStatus.DAMAGED)
        return not is_wanted and self._models.served_version(row.name, row.version) is not None

    def answers(self, row: ModelVersion) -> bool:
        """True if these bytes and options answer, once a request loads them if they are away."""
        record = self._models.record(row.name, row.version)
        if record is not None and self._models.is_away(row.name, row.version):
            return record.is_same(row)
        replicas = self._models.served_version(row.name, row.version)
        return replicas is not None and replicas.any.model.is_same(row)

    def lacks_schedules(self, row: ModelVersion, wanted: WantedState) -> bool:
        """True if a version answers on a device of a type that it has no schedule for."""
        replicas = self._replicas(row) if self.answers(row) else ()
        ids = {key.id for replica in replicas for key in replica.schedule_keys}
        return not ids <= wanted.schedules.keys()

    def is_own(self, row: ModelVersion) -> bool:
        """True if a job of this node works on a version."""
        return self._jobs.is_working_on(row.name, row.version)

    def _replicas(self, row: ModelVersion) -> Iterator[ModelReplica]:
        served = self._models.served_version(row.name, row.version)
        return (queued.replica for queued in (served.all if served is not None else ()))

    def new_schedules(self, row: ModelVersion, wanted: WantedState) -> Iterator[StoredSchedule]:
        """Yield each stored schedule of a version that was not looked at yet."""
        for replica in self._replicas(row):
            stored_before = self._stored_at.get(replica, {})
            for key in (*replica.schedule_keys, *replica.larger_keys):
                stored_at = wanted.schedules.get(key.id)
                if stored_at is not None and stored_before.get(key) != stored_at:
                    yield StoredSchedule(replica, key, stored_at)

    def seen(self, stored: StoredSchedule) -> None:
        """Leave out a schedule from now on, until another one takes its place."""
        self._stored_at.setdefault(stored.replica, {})[stored.key] = stored.stored_at
