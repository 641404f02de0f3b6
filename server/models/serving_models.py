"""The models that clients know by name, and which of them answer.

Owns every ModelReplica, and the queues of each device where its requests wait. What may be asked
for by name is what the store has registered; a version answers from the moment it is imported, and
the newest one that answers is the default.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from braid.compiler.imported_model import ImportedModel
from braid.compiler.retries import RetriesExhausted
from braid.core.background import BackgroundTasks, to_the_end
from braid.core.errors import BraidError, Draining, NotFound, PreconditionFailed
from braid.core.schedule import Schedule
from braid.server.devices.pool import Devices
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import DeviceExecution
from braid.server.inference.replica import ModelReplica
from braid.server.inference.routing import QueuedReplica, Replicas
from braid.server.models.versions import DEFAULT_CONFIG, Coming, KnownModels, KnownVersion, OnChange
from braid.server.observability.metrics import Metrics
from braid.server.observability.series.requests import ModelMetrics
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import BatchPolicy, ServingConfig

LOOK_S = 0.2
QUIET_LOOKS = 5
"""Looks at idle devices, ``LOOK_S`` seconds apart, after which requests count as leaving cores."""

OnVersion = Callable[[str, int], None]
"""Told a model's name and a version of it that answers from now on."""

Bring = Callable[[KnownVersion, float | None], Awaitable[None]]
"""Loads a version that is not in memory; returns when it is, or raises why it is not in time.

Waits until a deadline on the monotonic clock; None: as long as the server lets requests wait.
"""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Model that a request named, or the reason why it does not answer."""

    metrics: ModelMetrics
    served: Replicas | None
    refusal: BraidError | None = None
    coming: KnownVersion | None = None  # that a request may wait for, in place of the refusal

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
        on_change: OnChange = lambda name: None,
        on_version: OnVersion = lambda name, version: None,
    ) -> None:
        """``policy``: of models without one of their own."""
        super().__init__(metrics, on_change)
        self._devices = devices
        self._policy = policy
        self._batchers = {d.name: Batcher(DeviceExecution(d)) for d in devices.all}
        self._is_refusing = False
        self._background = BackgroundTasks("plans of models")
        self.on_decided: Callable[[ModelReplica, Schedule], object] = lambda replica, schedule: None
        """Receives a schedule whose order requests have decided."""
        self._on_version = on_version
        self.bring: Bring | None = None  # none is ever put away

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
        known = self._names[name][number]
        metrics, now = self._metrics.find_model(name, number), known.now
        if self._is_refusing:
            return ResolvedModel(metrics, None, Draining("the server is shutting down; try again"))
        if isinstance(now, Replicas):
            return ResolvedModel(metrics, now)
        coming = known if isinstance(known.now, Coming) else None
        return ResolvedModel(metrics, None, known.refusal(), coming)

    async def present(self, resolved: ResolvedModel, deadline: float | None) -> Replicas:
        """Replicas of what a request named, loaded first if they are not in memory.

        Raises BraidError: it does not answer, or not before ``deadline`` on the monotonic clock.
        """
        while (known := resolved.coming) is not None and self.bring is not None:
            await self.bring(known, deadline)
            resolved = self.for_request(known.row.name, str(known.row.version))
        replicas = resolved.require()
        replicas.used_at = monotonic()
        return replicas

    def refusal(self) -> ResolvedModel | None:
        """Refusal that every request gets now; None: it depends on the model.

        So a request can be refused before it is read, while every model has all that may wait.
        """
        refusal: ResolvedModel | None = None
        for known in self._all():
            if isinstance(known.now, Coming):
                return None  # it may be meant for one that is not in memory
            for queued in known.now.all if isinstance(known.now, Replicas) else ():
                served = queued.replica
                if (full := queued.batcher.refusal(served)) is None:
                    return None
                metrics = self._metrics.find_model(served.name, served.version)
                if refusal is not None and refusal.metrics is not metrics:
                    metrics = self._metrics.unknown  # it may be meant for any of them
                refusal = ResolvedModel(metrics, None, full)
        return refusal

    def present_versions(self) -> Iterator[Replicas]:
        return (known.served for known in self._all() if known.served is not None)

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
        for replica in self._replicas_of(name):
            self._apply(config, replica)
            self._background.start(replica.follow_policy())

    async def follow_plans(self, name: str) -> None:
        """Wait until what the configuration of a model pins, or pins no more, serves so."""
        for replica in self._replicas_of(name):
            await replica.follow_policy()

    def _replicas_of(self, name: str) -> list[ModelReplica]:
        return [replica for replica in self.all_replicas() if replica.name == name]

    def _apply(self, config: ServingConfig, replica: ModelReplica) -> None:
        policy = config.batching.over(self._policy)
        replica.policy = replace(policy, plan=config.plan)
        replica.declare(config.interface)

    def served_version(self, name: str, version: int) -> Replicas | None:
        known = self.find(name, version)
        return None if known is None else known.served

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
        known = self._names.get(served.name, {}).get(served.version)
        return not self._is_refusing and known is not None and known.now is replicas

    async def put_away(self, model: ModelVersion) -> None:
        """Unload a version; accepted requests end first, and the next one loads it again."""
        known = self._names[model.name][model.version]
        replicas, known.now = known.served, Coming.AWAY
        await to_the_end(_end(replicas))

    def missing_on(self, device: str) -> list[ModelVersion]:
        """Versions that answer on other devices only, or could not be restored on any.

        Leaves out those whose retries are exhausted: they may end each worker that loads them.
        """
        return [
            known.row
            for known in self._all()
            if isinstance(known.now, Replicas | BraidError)
            and not isinstance(known.now, RetriesExhausted)
            and self._on(known.row.name, known.row.version, device) is None
        ]

    def all_served(self) -> list[ModelReplica]:
        replicas = [each.any for each in self.present_versions()]
        return sorted(replicas, key=lambda replica: (replica.name, replica.version))

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
        known = self._names[model.name][model.version]
        before = known.served
        is_first = before is None or not before.any.model.is_same(model)
        replicas = Replicas() if before is None or is_first else before
        if known.replacement is not None:
            known.row, known.replacement = replace(model, state=ModelStatus.SERVING), None
        self._apply(self.config(model.name), served)
        replicas.add(QueuedReplica(served, self._batchers[device]))
        known.now = replicas
        self._metrics.find_model(model.name, model.version).on(device)  # its series begin at zero
        if is_first:
            self._on_change(model.name)
            self._on_version(model.name, model.version)
        if before is not replicas:
            await to_the_end(_end(before))

    def _lacks(self, model: ModelVersion, device: str) -> bool:
        """True if a version does not answer on a device. PreconditionFailed: it was replaced."""
        known = self.find(model.name, model.version)
        if known is None or not known.expects(model):
            what = "deleted" if known is None else "replaced"
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

        Nothing changes if they do. Raises InvalidArtefact (the old plan stays), or
        PreconditionFailed: the model is gone there.
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
        if served.has_plan(batch_size, of) and served.has_chosen(schedule):
            return  # its contest goes on
        await served.use_plan(batch_size, schedule, of)
        served.chosen[schedule.key] = schedule
        if latency_us := schedule.table.rows[0].latency_us:
            served.expect(batch_size, latency_us, of)

    async def use_sequential(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Let the sequential plan run, by its latency in a schedule that is not promoted."""
        served = self._on(model.name, model.version, device)
        provenance, batch_size = schedule.provenance, schedule.key.batch_size
        if served is None or not served.model.is_same(model):
            return
        of = served.scheduled.get(schedule.key.shapes)
        if of is not None and served.has_plan(batch_size, of):
            await served.use_plan(batch_size, None, of)
        served.chosen[schedule.key] = schedule
        if provenance.sequential_us and served.is_main(schedule):
            served.expect(batch_size, provenance.sequential_us)

    def _on(self, name: str, version: int, device: str) -> ModelReplica | None:
        replicas = self.served_version(name, version)
        return None if replicas is None else replicas.on(device)

    async def remove(self, name: str, version: int) -> None:
        """Stop taking requests, finish the accepted ones, then forget the version."""
        known = self.find(name, version)
        if known is None:
            return
        del self._names[name][version]
        if not self._names[name]:
            del self._names[name]
        await self._stop_serving(known)
        self._metrics.remove_model(name, version)

    async def unload(self, model: ModelVersion) -> None:
        await self._stop_serving(self._registered(model))

    async def _stop_serving(self, known: KnownVersion) -> None:
        replicas, known.now = known.served, None
        self._on_change(known.row.name)
        await _end(replicas)

    def using(self, digest: str, device: str) -> list[ModelVersion]:
        return [
            known.row
            for known in self._all()
            if known.served is not None
            and (replica := known.served.on(device)) is not None
            and replica.digest == digest
        ]

    def digests(self) -> set[str]:
        return {replicas.any.digest for replicas in self.present_versions()}

    async def leave(self, model: ModelVersion, device: str) -> bool:
        """End the replica of a version on one device; the version keeps its state.

        Returns whether it answers nowhere any more although it is to.
        """
        known = self.find(model.name, model.version)
        replicas = None if known is None else known.served
        if known is None or replicas is None or replicas.on(device) is None:  # gone meanwhile
            return False
        queued = replicas.remove(device)
        if not replicas.all:
            known.now = None
        self._on_change(model.name)
        await queued.end()
        is_known = self.find(model.name, model.version) is known
        return is_known and known.row.state is not ModelStatus.UNLOADED and known.served is None


async def _end(replicas: Replicas | None) -> None:
    for queued in () if replicas is None else replicas.all:
        await queued.end()
