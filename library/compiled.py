"""A compiled model: its artefact with a schedule for each batch size, as the server keeps them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

from braid.charts.svg import timeline_svg
from braid.charts.timeline import scheduled, sequential
from braid.compiler.imported_model import ImportedModel
from braid.core.graph import OpGraph
from braid.core.inputs import ShapeClass
from braid.core.measurement import rival_text, speed_text
from braid.core.program import PlanToRun, to_run
from braid.core.schedule import Schedule
from braid.engine.link.options import WorkerOptions


@dataclass(frozen=True, slots=True)
class Compiled:
    """An imported model, its schedules by batch size, and the device that they are for."""

    imported: ImportedModel
    schedules: Mapping[int, Schedule]
    graphs: Mapping[int, OpGraph]  # static ones, that the schedules are about
    options: WorkerOptions
    remarks: tuple[str, ...] = ()  # why some batch sizes run sequentially
    lengths: tuple[Compiled, ...] = ()  # the same model at other lengths of its padded axis

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sizes that run, ascending: those that were asked for, or that turned out to pay."""
        return tuple(sorted({*self.imported.batch_sizes, *self.schedules}))

    def expected_us(self, batch_size: int) -> float:
        """Return the measured latency of a batch; without one, a row's as in the others."""
        schedules = self.schedules.items()
        latencies_us = {size: us for size, schedule in schedules if (us := schedule.serving_us)}
        if batch_size in latencies_us:
            return latencies_us[batch_size]
        a_row = min((us / size for size, us in latencies_us.items()), default=0.0)
        return a_row * batch_size or 1.0

    def to_run(self, shape_class: ShapeClass, batch_size: int) -> PlanToRun:
        imported, schedule = self.imported, self.schedules.get(batch_size)
        batched = imported.report.batch is not None
        program = shape_class.program(imported.digest, batch_size, batched=batched)
        if shape_class != imported.shape_class or (schedule and not schedule.provenance.promoted):
            schedule = None
        return to_run(program, schedule)


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
