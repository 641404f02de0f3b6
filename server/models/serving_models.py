"""The models that clients know by name, and which of them answer.

Owns every ModelReplica, and the queues of each device where its requests wait. What may be asked
for by name is what the store has registered; a version answers from the moment it is imported, and
the newest one that answers is the default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from braid.compiler.imported_model import ImportedModel
from braid.compiler.retries import RetriesExhausted
from braid.core.background import BackgroundTasks, to_the_end
from braid.core.errors import (
    BraidError,
    Draining,
    NotFound,
    PreconditionFailed,
)
from braid.core.schedule import Schedule
from braid.server.devices.pool import Devices
from braid.server.inference.batching.admission import Quarantine
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import DeviceExecution
from braid.server.inference.replica import ModelReplica, ScheduleMark
from braid.server.inference.routing import QueuedReplica, Replicas
from braid.server.models.versions import DEFAULT_CONFIG, NONE, KnownModels, ModelVersions, OnServing
from braid.server.observability.metrics import Metrics
from braid.server.observability.series.requests import ModelMetrics
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import BatchPolicy, ServingConfig

LOOK_S = 0.2
QUIET_LOOKS = 5
"""Looks at idle devices, ``LOOK_S`` seconds apart, after which requests count as leaving cores."""

OnVersion = Callable[[str, int], None]
"""Told a model's name and a version of it that answers from now on."""

Bring = Callable[[ModelVersion, float | None], Awaitable[None]]
"""Loads a version that is not in memory; returns when it is, or raises why it is not in time.

Waits until a deadline on the monotonic clock; None: as long as the server lets requests wait.
"""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Model that a request named, or the reason why it does not answer."""

    metrics: ModelMetrics
    served: Replicas | None
    refusal: BraidError | None = None
    coming: ModelVersion | None = None  # that a request may wait for, in place of the refusal

    def require(self) -> Replicas:
        if self.served is None:
            assert self.refusal is not None
            raise self.refusal
        return self.served


class ServingModels(KnownModels):
    """The models that are known, and the replicas of those that answer."""

    def __init__(
        self,
        devices: Devices,
        metrics: Metrics,
        policy: BatchPolicy,
        on_serving: OnServing = lambda name, serving: None,
        on_version: OnVersion = lambda name, version: None,
        bring: Bring | None = None,
    ) -> None:
        """``policy``: of models without one of their own. ``bring`` None: none is ever put away."""
        super().__init__(metrics, on_serving)
        self._devices = devices
        self._policy = policy
        quarantine = Quarantine()
        self._batchers = {
            device.name: Batcher(DeviceExecution(device), quarantine=quarantine)
            for device in devices.all
        }
        self._is_refusing = False
        self._background = BackgroundTasks("plans of models")
        self.on_decided: Callable[[ModelReplica, Schedule], object] = lambda replica, schedule: None
        """Receives a schedule whose order requests have decided."""
        self._on_version = on_version
        self._bring = bring

    def refuse_requests(self) -> None:
        self._is_refusing = True

    async def quiet(self) -> None:
        """Wait until looks at all devices, one after the other, have found none of them running."""
        looks = 0
        while looks < QUIET_LOOKS:
            await asyncio.sleep(LOOK_S)
            looks = 0 if self.is_running else looks + 1

    @property
    def is_running(self) -> bool:
        return any(batcher.is_running for batcher in self._batchers.values())

    def backlogs_s(self) -> list[float]:
        """Return for each device the expected seconds until all that was accepted is done."""
        return [batcher.backlog_s() for batcher in self._batchers.values()]

    async def drain(self) -> None:
        await asyncio.gather(*(batcher.drain() for batcher in self._batchers.values()))

    def for_request(self, name: str, version: str) -> ResolvedModel:
        """Model, or the refusal, that a request for ``name`` gets.

        ``version``: a number, a label, or "": the stable version, or else the newest that answers.
        """
        try:
            number = self.number(name, version)
        except NotFound as missing:
            return ResolvedModel(self._metrics.unknown, None, missing)
        entry = self._names[name]
        metrics = self._metrics.find_model(name, number)
        if self._is_refusing:
            return ResolvedModel(metrics, None, Draining("the server is shutting down; try again"))
        served = entry.served.get(number)
        if served is not None:
            return ResolvedModel(metrics, served)
        coming = entry.versions[number] if self.is_coming(name, number) else None
        return ResolvedModel(metrics, None, entry.refusal(number), coming)

    async def present(self, resolved: ResolvedModel, deadline: float | None) -> Replicas:
        """Replicas of what a request named, loaded first if they are not in memory.

        Raises BraidError: it does not answer, or not before ``deadline`` on the monotonic clock.
        """
        while (model := resolved.coming) is not None and self._bring is not None:
            await self._bring(model, deadline)
            resolved = self.for_request(model.name, str(model.version))
        replicas = resolved.require()
        replicas.used_at = monotonic()
        return replicas

    def refusal(self) -> ResolvedModel | None:
        """Refusal that every request gets now; None: it depends on the model.

        So a request can be refused before it is read, while every model has all that may wait.
        """
        refusal: ResolvedModel | None = None
        for entry in self._names.values():
            for replicas in entry.served.values():
                for queued in replicas.all:
                    served = queued.replica
                    if (full := queued.batcher.refusal(served)) is None:
                        return None
                    metrics = self._metrics.find_model(served.name, served.version)
                    if refusal is not None and refusal.metrics is not metrics:
                        metrics = self._metrics.unknown  # it may be meant for any of them
                    refusal = ResolvedModel(metrics, None, full)
        if any(entry.away or entry.restoring for entry in self._names.values()):
            return None  # it may be meant for one that is not in memory
        return refusal

    def present_versions(self) -> Iterator[Replicas]:
        for entry in self._names.values():
            yield from entry.served.values()

    def all_queued(self) -> Iterator[QueuedReplica]:
        for replicas in self.present_versions():
            yield from replicas.all

    def configure(self, name: str, config: ServingConfig) -> None:
        """Apply all but the versions, as ``braid.server.models.policies`` does.

        The usual configuration is not kept: names that were deleted would add up.
        """
        if config == DEFAULT_CONFIG:
            self._configs.pop(name, None)
        else:
            self._configs[name] = config
        for replicas in self._entry(name).served.values():
            for queued in replicas.all:
                self._apply(config, queued.replica)
                self._background.start(queued.replica.follow_policy())

    async def follow_plans(self, name: str) -> None:
        """Wait until what the configuration of a model pins, or pins no more, serves so."""
        for replica in self.all_replicas():
            if replica.name == name:
                await replica.follow_policy()

    def _apply(self, config: ServingConfig, replica: ModelReplica) -> None:
        policy = config.batching.over(self._policy)
        replica.policy = replace(policy, plan=config.plan)
        replica.declare(config.interface)

    def served_version(self, name: str, version: int) -> Replicas | None:
        """Replicas of one version, or None if it does not answer."""
        return self._entry(name).served.get(version)

    def scheduled_shapes(self, model: ModelVersion) -> Sequence[str]:
        """Shapes that a version is scheduled for, the main one first; none: it does not answer."""
        replicas = self.served_version(model.name, model.version)
        is_same = replicas is not None and replicas.any.model.is_same(model)
        return tuple(replicas.any.scheduled) if replicas is not None and is_same else ()

    def is_main(self, model: ModelVersion, schedule: Schedule) -> bool:
        """Return whether a schedule is of a version's main shape, as far as that is known."""
        return schedule.key.shapes in (*self.scheduled_shapes(model), schedule.key.shapes)[:1]

    def answers_with(self, replicas: Replicas, served: ModelReplica) -> bool:
        """True if requests still go to these replicas of a version; ``served`` is one of them."""
        entry = self._names.get(served.name, NONE)
        return not self._is_refusing and entry.served.get(served.version) is replicas

    async def put_away(self, model: ModelVersion) -> None:
        """Unload a version; accepted requests end first, and the next one loads it again."""
        entry = self._names[model.name]
        replicas = entry.served.pop(model.version)
        entry.away.add(model.version)
        await to_the_end(_end_all(replicas.all))

    def missing_on(self, device: str) -> list[ModelVersion]:
        """Versions that answer on other devices only, or could not be restored on any.

        Leaves out those whose retries are exhausted: they may end each worker that loads them.
        """
        return [
            model
            for entry in self._names.values()
            for version, model in entry.versions.items()
            if (version in entry.served or version in entry.problems)
            and not isinstance(entry.problems.get(version), RetriesExhausted)
            and self._on(model.name, version, device) is None
        ]

    def all_served(self) -> list[ModelReplica]:
        return [
            entry.served[version].any
            for _, entry in sorted(self._names.items())
            for version in sorted(entry.served)
        ]

    def all_replicas(self) -> list[ModelReplica]:
        return [queued.replica for queued in self.all_queued()]

    async def serve(self, model: ModelVersion, imported: ImportedModel, device: str) -> None:
        """Let a version whose model is loaded on a device answer there.

        If it does already, nothing changes. It begins with the sequential plan. What the version
        served before finishes its accepted requests, on all devices, and goes. Raises
        InvalidRequest (its shapes), DeviceOutOfMemory, or PreconditionFailed: it was deleted or
        replaced meanwhile.
        """
        if not self._lacks(model, device):
            return
        served = await self._replica(model, imported, device)
        if not self._lacks(model, device):  # another job was faster
            await served.close()
            return
        entry = self._names[model.name]
        before = entry.served.get(model.version)
        if before is None or not before.any.model.is_same(model):
            entry.served[model.version] = Replicas()
        replicas = entry.served[model.version]
        if entry.replacements.pop(model.version, None) is not None:
            entry.versions[model.version] = replace(model, state=ModelStatus.SERVING)
        entry.problems.pop(model.version, None)
        entry.away.discard(model.version)
        is_first = not replicas.all
        self._apply(self.config(model.name), served)
        replicas.add(QueuedReplica(served, self._batchers[device]))
        self._metrics.find_model(model.name, model.version).on(device)  # its series begin at zero
        if is_first:
            self._on_serving(model.name, True)
            self._on_version(model.name, model.version)
        if before is not None and before is not replicas:
            await to_the_end(_end_all(before.all))

    def _lacks(self, model: ModelVersion, device: str) -> bool:
        """True if a version does not answer on a device. PreconditionFailed: it was replaced."""
        entry = self._entry(model.name)
        if not entry.expects(model):
            what = "replaced" if model.version in entry.versions else "deleted"
            raise PreconditionFailed(f"{model.name} version {model.version} was {what}")
        replica = self._on(model.name, model.version, device)
        return replica is None or not replica.model.is_same(model)

    async def _replica(
        self, model: ModelVersion, imported: ImportedModel, device: str
    ) -> ModelReplica:
        on = self._devices.named(device)
        assert on is not None
        replica = ModelReplica(model, imported, on)
        replica.on_decided = lambda replica, schedule: self.on_decided(replica, schedule)
        self._apply(self.config(model.name), replica)  # before plans are chosen by it
        await replica.follow_policy()
        try:
            for batch_size in replica.batch_sizes:
                await replica.use_plan(batch_size)
        except BaseException:
            await replica.close()
            raise
        return replica

    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Let batches formed from now on run ``schedule.plan``, by the latency measured of it.

        Raises InvalidArtefact (the old plan stays), or PreconditionFailed: the model is gone there.
        """
        served = self._on(model.name, model.version, device)
        if served is None and self.is_away(model.name, model.version):
            return  # it uses what is stored when it is loaded again
        if served is None or not served.model.is_same(model):
            raise PreconditionFailed(
                f"{model.name} version {model.version} does not serve on {device}",
            )
        batch_size, of = schedule.key.batch_size, served.scheduled.get(schedule.key.shapes)
        if of is None:
            raise PreconditionFailed(
                f"{model.name} version {model.version} is not scheduled for {schedule.key.shapes} "
                "any more"
            )
        await served.use_plan(batch_size, schedule, of)
        served.chosen[schedule.key] = ScheduleMark.of(schedule)
        if latency_us := schedule.table.rows[0].latency_us:
            served.expect(batch_size, latency_us, of)

    async def use_sequential(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        served = self._on(model.name, model.version, device)
        provenance, batch_size = schedule.provenance, schedule.key.batch_size
        if served is None or not served.model.is_same(model):
            return
        of = served.scheduled.get(schedule.key.shapes)
        if of is not None and served.has_plan(batch_size, of):
            await served.use_plan(batch_size, None, of)
        served.chosen[schedule.key] = ScheduleMark.of(schedule)
        if provenance.sequential_us and served.is_main(schedule):
            served.expect(batch_size, provenance.sequential_us)

    def _on(self, name: str, version: int, device: str) -> ModelReplica | None:
        replicas = self.served_version(name, version)
        return None if replicas is None else replicas.on(device)

    async def remove(self, name: str, version: int) -> None:
        """Stop taking requests, finish the accepted ones, then forget the version."""
        entry = self._names.get(name)
        if entry is None:
            return
        entry.versions.pop(version, None)
        entry.restoring.discard(version)
        entry.away.discard(version)
        entry.problems.pop(version, None)
        entry.replacements.pop(version, None)
        if not entry.versions:
            del self._names[name]
        await self._stop_serving(entry, name, version)
        self._metrics.remove_model(name, version)

    async def unload(self, model: ModelVersion) -> None:
        self.register(model)
        entry = self._names[model.name]
        entry.problems.pop(model.version, None)
        await self._stop_serving(entry, model.name, model.version)

    async def _stop_serving(self, entry: ModelVersions, name: str, version: int) -> None:
        replicas = entry.served.pop(version, None)
        if not (entry.served or entry.away):
            self._on_serving(name, False)
        await _end_all(replicas.all if replicas is not None else ())

    def using(self, digest: str, device: str) -> list[ModelVersion]:
        """Versions with this digest that answer on a device."""
        return [
            entry.versions[version]
            for entry in self._names.values()
            for version, replicas in entry.served.items()
            if (served := replicas.on(device)) is not None and served.digest == digest
        ]

    def digests(self) -> set[str]:
        return {
            replicas.any.digest
            for entry in self._names.values()
            for replicas in entry.served.values()
        }

    async def leave(self, model: ModelVersion, device: str) -> bool:
        """End the replica of a version on one device; the version keeps its state.

        Returns whether it answers nowhere any more although it is to.
        """
        replicas = self.served_version(model.name, model.version)
        if replicas is None or replicas.on(device) is None:  # deleted or unloaded meanwhile
            return False
        entry = self._names[model.name]
        queued = replicas.remove(device)
        if not replicas.all:
            del entry.served[model.version]
        if not entry.served:
            self._on_serving(model.name, False)
        await queued.end()
        now = entry.versions.get(model.version)
        is_wanted = now is not None and now.state is not ModelStatus.UNLOADED
        return is_wanted and model.version not in entry.served


async def _end_all(replicas: Iterable[QueuedReplica]) -> None:
    for queued in replicas:
        await queued.end()
