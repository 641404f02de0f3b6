"""Schedule drift: present latencies of plans beside the profiled ones.

    Device ──ran(plan id, us)──> DriftWatch ──every few seconds──> gauges, and on_drift
    jobs ──schedule_chosen──────────┘

A schedule is as good as its measurements. If the device changes under it (clocks, a neighbour, a
driver), its live latency moves away from the profiled one. The watch keeps the median of the
latest batches of each promoted plan. A plan *drifts* once its median has been above ``ratio`` times
the profile, and above it by at least ``MIN_EXCESS_US``, for ``sustained_seconds`` without a break:
copies and a busy moment are no drift. So it does if the profile is as far above the median: that
was made on a busy machine then, and what was chosen by it may be wrong as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import monotonic

from braid.core.schedule import Schedule
from braid.server.observability.series.plans import DriftMetrics, PlanLabels
from braid.server.store.records import ModelVersion

log = logging.getLogger("braid.drift")

CHECK_SECONDS = 5.0
SAMPLES, MIN_SAMPLES = 128, 16
SAMPLE_SECONDS = 300.0  # older batches say nothing about now
MIN_EXCESS_US = 200.0
PAUSE_SECONDS = 6 * 3600.0  # between two reports of one plan: profiling again may not help


@dataclass(slots=True)
class _Plan:
    """Plan that serves. Several models with the same bytes share one."""

    profiled_us: float
    labels: set[PlanLabels] = field(default_factory=set)
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    since: float | None = None  # it has been slower, or faster
    is_slower: bool = False
    reported_at: float | None = None


class DriftWatch:
    """Latest latencies of every promoted plan. Belongs to the event loop."""

    def __init__(
        self,
        gauges: DriftMetrics,
        ratio: float,
        sustained_seconds: float,
        on_drift: Callable[[PlanLabels, float], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``on_drift`` is told the labels of each plan that has begun to drift, and its ratio.

        The ratio is that of the live latency to the profiled one: below 1 it is faster.
        """
        self._gauges = gauges
        self._ratio = ratio
        self._sustained_seconds = sustained_seconds
        self._clock = clock
        self._plans: dict[str, _Plan] = {}
        self._on_drift = on_drift

    def schedule_chosen(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Expect the latency that a schedule was measured at. Ignored for models that are gone."""
        labels = PlanLabels.of(model, device, schedule)
        if self._gauges.knows(labels.model, labels.version):
            self.expect(labels, schedule)

    def expect(self, labels: PlanLabels, schedule: Schedule) -> None:
        """Watch the plan of a schedule that serves from now on, if the schedule was promoted."""
        this = schedule.plan_id
        for plan_id, plan in list(self._plans.items()):
            if labels in plan.labels:
                plan.labels.discard(labels)
                self._gauges.drift_unknown(labels)
                if not plan.labels and plan_id != this:
                    del self._plans[plan_id]
        measured_us = schedule.provenance.measured_us
        if not schedule.provenance.promoted or not measured_us:
            return
        watched = self._plans.get(this)
        if watched is None or watched.profiled_us != measured_us:
            reported_at = watched.reported_at if watched else None
            kept = watched.labels if watched else set()
            watched = _Plan(measured_us, labels=kept, reported_at=reported_at)
            self._plans[this] = watched
        watched.labels.add(labels)

    def ran(self, plan_id: str, compute_us: int) -> None:
        """Record a batch that took ``compute_us``. Cheap: called for every batch."""
        plan = self._plans.get(plan_id)
        if plan is not None:
            plan.samples.append((self._clock(), compute_us))

    async def run(self) -> None:
        """Check every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check()

    def check(self) -> None:
        """Set the gauges, and report plans that have begun to drift."""
        now = self._clock()
        for plan_id, plan in list(self._plans.items()):
            plan.labels = {labels for labels in plan.labels if self._gauges.knows(*labels[:2])}
            if not plan.labels:
                del self._plans[plan_id]
                continue
            while plan.samples and plan.samples[0][0] < now - SAMPLE_SECONDS:
                plan.samples.popleft()
            self._check(plan, now)

    def _check(self, plan: _Plan, now: float) -> None:
        if len(plan.samples) < MIN_SAMPLES:
            plan.since = None
            for labels in plan.labels:
                self._gauges.drift_unknown(labels)
            return
        live_us = median(us for _, us in plan.samples)
        ratio = live_us / plan.profiled_us
        is_off = max(ratio, 1 / ratio) > self._ratio
        is_slower = ratio > 1
        if not is_off or abs(live_us - plan.profiled_us) < MIN_EXCESS_US:
            plan.since = None
        elif plan.since is None or plan.is_slower != is_slower:
            plan.since, plan.is_slower = now, is_slower
        is_drifting = plan.since is not None and now - plan.since >= self._sustained_seconds
        for labels in plan.labels:
            self._gauges.drift_is(labels, live_us, ratio, is_drifting and is_slower)
        if is_drifting and (plan.reported_at is None or now - plan.reported_at >= PAUSE_SECONDS):
            plan.reported_at = now
            self._report(plan, live_us, ratio)

    def _report(self, plan: _Plan, live_us: float, ratio: float) -> None:
        for labels in sorted(plan.labels):
            log.warning(
                "a plan is %s than it was profiled",
                "slower" if ratio > 1 else "faster",
                extra={
                    **labels._asdict(),
                    "live_us": round(live_us),
                    "profiled_us": round(plan.profiled_us),
                    "ratio": round(ratio, 2),
                },
            )
            self._on_drift(labels, ratio)
