"""A compiled model: its artefact with a schedule for each batch size, as the server keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from braid.compiler.imported_model import ImportedModel
from braid.core.graph import OpGraph
from braid.core.inputs import ShapeClass
from braid.core.program import PlanToRun, ProgramKey, as_scheduled
from braid.core.schedule import Schedule
from braid.core.tensor import TensorType
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
        inputs, is_alone = shape_class.inputs, shape_class.is_alone
        if self.imported.report.batch is not None and not is_alone:
            inputs = tuple(
                (name, TensorType(spec.dtype, (batch_size, *spec.shape[1:])))
                for name, spec in inputs
            )
        digest, static = self.imported.digest, shape_class.static
        program = ProgramKey(digest, inputs, static, is_loose=is_alone)
        if is_alone:
            return PlanToRun(program)
        schedule = self.schedules.get(batch_size)
        profiled = self.imported.program(batch_size)
        if schedule is None or not schedule.provenance.promoted:
            return PlanToRun(program)
        if (program.inputs, program.static) != (profiled.inputs, profiled.static):
            return PlanToRun(program)
        program = as_scheduled(program, schedule)
        return PlanToRun(program, schedule.plan, schedule.plan_id, schedule.runtime)
