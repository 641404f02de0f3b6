"""Is a schedule that was found in the store as fast here as where it was measured?

    taken over ──> device idle ──> some runs of what serves ──within 25 %──> nothing
                                           └──> all runs of a comparison ──still off──┐
         log, metric, remark <── batches are formed by this node's own latencies <────┘

A device key says what a measurement depends on as far as a node can know; a neighbour, a cooler or
another host can make a difference all the same. What this node measures it keeps in its memory and
for itself: the schedule of the fleet stays, and other nodes judge for themselves. A schedule that
is provisional is made again anyway, and what was measured while this node was busy says nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid.compiler.progress import batch_size_label
from braid.core.errors import BraidError
from braid.core.measurement import PlanMeasurement
from braid.core.plan import sequential_plan
from braid.core.precision import AUTO, FP32
from braid.core.program import PlansToCompare
from braid.core.schedule import Schedule
from braid.core.sign_test import sign_test_interval
from braid.engine.link.messages import ComparePlans, DescribeProgram
from braid.server.fleet.metrics import FollowMetrics
from braid.server.inference.replica import ModelReplica, ScheduleMark
from braid.server.jobs.interfaces import ServingDevice
from braid.server.jobs.services import JobServices
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelVersion

log = logging.getLogger("braid.fleet")

OFF = 0.25
"""Difference of two latencies, relative to the recorded one, above which a node goes by its own."""

BUSY_S = 1.0
"""Seconds until a device that measures for a job is looked at again."""

ANY_ERROR = 1e30
"""Tolerance of outputs that lets each plan be timed: what errs was refused when it was made."""


@dataclass(frozen=True, slots=True)
class _TakenOver:
    """Schedule that serves here and was found in the store."""

    model: ModelVersion
    device: ServingDevice
    schedule: Schedule

    @property
    def mark(self) -> tuple[str, ScheduleMark]:
        return self.schedule.key.id, ScheduleMark.of(self.schedule)

    @property
    def label(self) -> str:
        key = self.schedule.key
        return batch_size_label(key.batch_size, self.device.name, key.shapes)

    @property
    def recorded_us(self) -> float | None:
        """Latency of what serves, as measured when the schedule was made; None: not recorded."""
        provenance, precision = self.schedule.provenance, self.schedule.key.precision
        if provenance.promoted:
            return provenance.measured_us
        return provenance.sequential_us if precision in (FP32, AUTO) else None

    async def to_compare(self, replica: ModelReplica) -> list[PlansToCompare]:
        """Return what serves without a schedule, and what serves with it last."""
        schedule, size = self.schedule, self.schedule.key.batch_size
        of = replica.scheduled[schedule.key.shapes]
        usual = replica.program(size, of=of)
        units = len((await self.device.ask(DescribeProgram(usual))).graph.operators)
        fields = [PlansToCompare(usual, (sequential_plan(units),), (), ANY_ERROR)]
        if schedule.provenance.promoted:
            plans = [sequential_plan(len(schedule.plan.launches))]
            runtimes = (schedule.runtime,) if schedule.runtime else ()
            if not runtimes:
                plans.append(schedule.plan)
            program = replica.program(size, schedule, of)
            fields.append(PlansToCompare(program, tuple(plans), runtimes, ANY_ERROR))
        return fields


class SameSpeed:
    """Times each schedule found in the store once. Belongs to the event loop."""

    def __init__(
        self, services: JobServices, models: ServingModels, observer: FollowMetrics
    ) -> None:
        self._services = services
        self._models = models
        self._observer = observer
        self._waiting: asyncio.Queue[_TakenOver] = asyncio.Queue()
        self._unfinished = 0
        # What was measured here of schedules that are off; None: as recorded, or not known yet.
        self._own: dict[tuple[str, ScheduleMark], Schedule | None] = {}

    def taken_over(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Time what serves once the device is idle, unless it was found to be as recorded."""
        on = next(item for item in self._services.devices if item.name == device)
        taken = _TakenOver(model, on, schedule)
        self._models.note(model, taken.label, "")
        if schedule.is_asked:
            return  # it is to be made again
        if taken.mark not in self._own or self._own[taken.mark] is not None:
            self._own.setdefault(taken.mark, None)
            self._waiting.put_nowait(taken)
            self._unfinished += 1

    @property
    def is_idle(self) -> bool:
        """True if everything that was taken over is timed."""
        return not self._unfinished

    async def run(self) -> None:
        """Time what was taken over, one after the other, until cancelled."""
        while True:
            taken = await self._waiting.get()
            facts = {"model": taken.model.name, "version": taken.model.version}
            try:
                await self._check(taken)
            except BraidError as error:
                log.info("a schedule was not timed", extra={**facts, "reason": str(error)})
            except Exception:
                log.exception("a schedule was not timed", extra=facts)
            self._unfinished -= 1

    async def _check(self, taken: _TakenOver) -> None:
        measured, recorded_us = self._own.get(taken.mark), taken.recorded_us
        if self._replica(taken) is None:
            self._own.pop(taken.mark, None)
            return
        if measured is None and recorded_us:
            measured = await self._compared(taken, recorded_us)
            if measured is None:
                return
            self._own[taken.mark] = measured
            self._observer.is_off_speed(taken.device.name)
        if measured is not None:
            await self._apply(taken, measured)

    async def _compared(self, taken: _TakenOver, recorded_us: float) -> Schedule | None:
        """Return a schedule as it was measured here; None: it is as recorded, or serves no more."""
        measured: Sequence[PlanMeasurement] = ()
        for is_brief in (True, False):
            measured = await self._measure(taken, is_brief=is_brief)
            own_us = measured[-1].latency_us if measured else None
            if own_us is None:
                return None
            if abs(own_us - recorded_us) <= OFF * recorded_us:
                speeds = {"here_us": round(own_us), "recorded_us": round(recorded_us)}
                facts = {"model": taken.model.name, "version": taken.model.version, **speeds}
                log.info("a schedule is as fast here as recorded", extra=facts)
                return None
        return _as_measured(taken.schedule, measured)

    async def _measure(self, taken: _TakenOver, *, is_brief: bool) -> Sequence[PlanMeasurement]:
        """Measure what serves, and the plan without a schedule, when nothing else runs.

        Empty if the schedule serves no more by then.
        """
        turn = self._services.device_turns.of(taken.device.name)
        await self._services.quiet()
        while turn.locked():
            await asyncio.sleep(BUSY_S)
            await self._services.quiet()
        async with turn, self._services.keeping(taken.model.artefact):
            replica = self._replica(taken)
            if replica is None:
                return ()
            retry = self._services.retry()
            fields = await retry(lambda: taken.to_compare(replica))
            request = ComparePlans(fields[0].program, tuple(fields), is_brief=is_brief)
            return (await retry(lambda: taken.device.ask(request))).plans

    def _replica(self, taken: _TakenOver) -> ModelReplica | None:
        """Replica that the schedule still serves on; None: there is none."""
        name, version = taken.model.name, taken.model.version
        replicas = self._models.served_version(name, version)
        replica = None if replicas is None else replicas.on(taken.device.name)
        if replica is None or not replica.model.is_same(taken.model):
            return None
        is_used = replica.chosen.get(taken.schedule.key) == taken.mark[1]
        return replica if is_used else None

    async def _apply(self, taken: _TakenOver, measured: Schedule) -> None:
        """Form batches by what was measured here, and say so."""
        replica, size = self._replica(taken), measured.key.batch_size
        provenance = measured.provenance
        own_us = provenance.measured_us if provenance.promoted else provenance.sequential_us
        if replica is None or own_us is None:
            return
        of = replica.scheduled[measured.key.shapes]
        if taken.schedule.provenance.promoted and not provenance.promoted:
            await replica.use_plan(size, of=of)
        replica.expect(size, own_us, of)
        for on_schedule in self._services.on_schedule:
            on_schedule(taken.model, taken.device.name, measured)
        recorded_us = taken.recorded_us or 0.0
        here = f"takes {own_us / 1000:.3g} ms here" if provenance.promoted else provenance.reason
        text = f"{taken.label}: {here}, {recorded_us / 1000:.3g} ms where its schedule was made"
        self._models.note(taken.model, taken.label, f"{text}; this server goes by its own")
        facts = {"model": taken.model.name, "version": taken.model.version, "reason": text}
        log.warning("a schedule is not as fast here as recorded", extra=facts)


def _as_measured(schedule: Schedule, measured: Sequence[PlanMeasurement]) -> Schedule:
    """Return a schedule with the latencies of this node in place of the recorded ones.

    It is promoted here if it was, unless what serves without it is faster without doubt.
    """
    before, usual_us, last = schedule.provenance, measured[0].latency_us, measured[-1]
    assert last.latency_us is not None
    speed = sign_test_interval(last.ratios)
    is_slower = before.promoted and speed is not None and (speed.most or 1.0) < 1.0
    provenance = replace(
        before,
        measured_us=last.latency_us if before.promoted else None,
        sequential_us=usual_us,
        spread=last.spread,
        promoted=before.promoted and not is_slower,
        reason=before.reason,
        candidates=(),
    )
    if is_slower and usual_us is not None:
        reason = f"takes {usual_us / 1000:.3g} ms here without its schedule, which is slower"
        provenance = replace(provenance, reason=reason)
    return replace(schedule, provenance=provenance)
