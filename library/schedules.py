"""A schedule of a network for people: its facts, and its timeline in a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass

from braid.charts.svg import timeline_svg
from braid.charts.timeline import scheduled, sequential
from braid.core.graph import OpGraph
from braid.core.measurement import rival_text, speed_text
from braid.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class NetworkSchedule:
    """How one batch size of a network runs, and what that was measured to take."""

    name: str  # of the network
    document: Schedule
    graph: OpGraph  # static; its operators are the schedule's units

    @property
    def plan_id(self) -> str:
        """Name of the plan, as a server answers it."""
        return self.document.plan_id

    @property
    def latency_us(self) -> float | None:
        """Measured latency of the plan in microseconds."""
        return self.document.provenance.measured_us

    @property
    def sequential_us(self) -> float | None:
        """Latency of the sequential plan in microseconds, measured in turns with this one."""
        return self.document.provenance.sequential_us

    @property
    def is_used(self) -> bool:
        """Whether it runs; else the sequential plan does, as ``reason`` says."""
        return self.document.provenance.promoted

    @property
    def reason(self) -> str:
        """Why the schedule is not used, or ""."""
        return self.document.provenance.reason

    def __str__(self) -> str:
        shown, batch = self.document, self.document.key.batch_size
        used = "" if self.is_used else f"; the sequential plan runs: {self.reason}"
        best = shown.best_other
        beside = f", {rival_text(best.ratio, best.name)}" if best else ""
        return (
            f"{self.name}, batch {batch}: {shown.planner}, {speed_text(shown.speed)} the speed of "
            f"the sequential plan{beside}, plan {self.plan_id}{used}"
        )

    def _repr_svg_(self) -> str:
        tracks = [sequential(self.document, None), scheduled(self.document, None)]
        key = self.document.key
        heading = f"{self.name}, batch {key.batch_size}, {key.device_key.partition(':')[0]}"
        return timeline_svg(tracks, [self.graph] * 2, heading)

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p>{self._repr_svg_()}"
