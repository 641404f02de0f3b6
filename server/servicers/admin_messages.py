"""Records of the store and of the serving models as messages of ``braid.v1``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from braid.compiler.options import ModelOptions
from braid.core.allowance import CpuAllowance, throttling, usable_memory_bytes
from braid.core.padding import PaddedAxis
from braid.core.precision import FP32
from braid.core.schedule import SEQUENTIAL, ContestTable, Schedule
from braid.core.tensor import TensorType
from braid.scheduler.options import PlannerSettings
from braid.server.inference.replica import ModelReplica
from braid.server.models.queries import Placed
from braid.server.store.records import JobRecord, ModelStatus, ModelVersion, ShownNode
from braid.server.store.serving_config import (
    RESIDENT,
    Batching,
    Residency,
    ServingConfig,
    VersionPolicy,
)
from braid_client.serving import BATCHING
from braid_client.wire import admin_pb2 as wire


def options_from_wire(header: wire.RegisterModelHeader) -> ModelOptions:
    """Options of a registration; zero and empty mean the defaults. Raises InvalidRequest."""
    planner = PlannerSettings.for_serving(header.planner.name)
    return ModelOptions(
        batch_sizes=tuple(header.batch_sizes),
        planner=replace(
            planner,
            max_group_ops=header.planner.max_group_ops or planner.max_group_ops,
            max_groups=header.planner.max_groups or planner.max_groups,
        ),
        input_shapes={name: tuple(shape.dims) for name, shape in header.input_shapes.items()},
        precision=header.precision or FP32,
        accepted_error=header.accepted_error or None,
        pad=dict(header.pad),
        no_pad=header.no_pad,
        more_shapes=tuple(
            {name: tuple(shape.dims) for name, shape in more.shapes.items()}
            for more in header.more_input_shapes
        ),
        lengths=header.lengths,
        batchable=header.batchable,
    )


def job_to_wire(job: JobRecord) -> wire.Job:
    return wire.Job(**_same(job, wire.Job, version=str(job.version), state=job.state.value))


def _same(record: object, message: type[Message], **others: object) -> dict[str, Any]:
    """Return the fields of a message that a record has by the same names, and ``others``."""
    names = (field.name for field in message.DESCRIPTOR.fields)
    return {name: getattr(record, name) for name in names if hasattr(record, name)} | others


def allowance_to_wire(cpus: CpuAllowance, budget_bytes: int) -> wire.Allowance:
    stopped = throttling()
    return wire.Allowance(
        cpus=cpus.cpus,
        cores=len(cpus.cores),
        memory_bytes=usable_memory_bytes(),
        memory_budget_bytes=budget_bytes,
        periods=stopped.periods,
        throttled_periods=stopped.throttled,
        throttled_seconds=stopped.seconds,
    )


def node_to_wire(shown: ShownNode, allowance: wire.Allowance | None = None) -> wire.Node:
    others = {
        "allowance": allowance if shown.is_this else None,
        "device_keys": shown.device_keys,
        "started_unix": shown.node.started_at,
        "beat_age_seconds": shown.beat_age_s,
        "alive": shown.node.is_alive,
        "job_ids": shown.job_ids,
        "answers": shown.is_this,
    }
    return wire.Node(**_same(shown.node, wire.Node, **others))


_STATES = {ModelStatus.DAMAGED: "FAILED"}
"""States that older clients do not know, as what is nearest; the message says the rest."""


def model_to_wire(
    model: ModelVersion, served: ModelReplica | None, schedules: Sequence[Placed]
) -> wire.Model:
    """Convert a model version; inputs and outputs are known once the version serves."""
    state = _STATES.get(model.state, model.state.value)
    known: dict[str, Any] = {}
    if served is not None:
        axis, rows, scheduled = served.lengths.axis, served.lengths.rows, served.scheduled_lengths
        known = {
            "inputs": _specs_to_wire(served.inputs),
            "outputs": _specs_to_wire(served.output_specs),
            "batched": served.batched,
            "warnings": served.warnings,
            "rows": served.rows,
            "guessed_extents": served.guessed,
            "padding": map(_padding_to_wire, served.padding),
            "lengths": axis and wire.Lengths(axis=axis.axis, rows=rows, scheduled=scheduled),
        }
    same = _same(model, wire.Model, version=str(model.version), state=state)
    return wire.Model(**same, schedules=map(_summary, schedules), **known)


def _padding_to_wire(axis: PaddedAxis) -> wire.PaddedAxis:
    ways = {name: part.way for name, part in axis.inputs.items()}
    return wire.PaddedAxis(**_same(axis, wire.PaddedAxis, inputs=ways))


def residency_from_wire(given: wire.Residency) -> Residency:
    idle_s = given.idle_seconds if given.HasField("idle_seconds") else None
    return Residency(given.kind or RESIDENT, idle_s, given.refuses)


def serving_from_wire(message: wire.ServingConfig) -> ServingConfig:
    """Read how a model is to serve. Raises InvalidRequest: something is out of range."""
    given = message.batching
    batching = {name: getattr(given, name) for name in BATCHING if given.HasField(name)}
    return ServingConfig(
        VersionPolicy(message.versions.latest or None, tuple(message.versions.specific)),
        dict(message.labels),
        Batching(**batching),
        residency_from_wire(message.residency),
    )


def serving_to_wire(model: str, config: ServingConfig) -> wire.ServingConfig:
    held = config.residency
    return wire.ServingConfig(
        model=model,
        versions=wire.VersionPolicy(**_same(config.versions, wire.VersionPolicy)),
        labels=config.labels,
        batching=wire.Batching(**_same(config.batching, wire.Batching)),
        residency=wire.Residency(**_same(held, wire.Residency, idle_seconds=held.idle_s)),
        pinned=config.plan,
    )


def _specs_to_wire(specs: Mapping[str, TensorType]) -> list[wire.TensorSpec]:
    return [
        wire.TensorSpec(
            name=name,
            dtype=spec.dtype,
            shape=[
                wire.Extent(symbol=dim) if isinstance(dim, str) else wire.Extent(fixed=dim)
                for dim in spec.shape
            ],
        )
        for name, spec in specs.items()
    ]


def _summary(placed: Placed) -> wire.ScheduleSummary:
    schedule = placed.schedule
    speed, best = schedule.speed, schedule.best_other
    told = _same(
        schedule.provenance,
        wire.ScheduleSummary,
        precision=schedule.precision,
        side_by_side=_side_by_side(schedule),
        plan_id=schedule.plan_id,
        device=placed.device,
        batch_size=schedule.key.batch_size,
        planner=schedule.planner,
        stages=len(schedule.stages),
        groups=sum(len(stage.groups) for stage in schedule.stages),
        speedup=speed.median if speed else None,
        speedup_least=speed.least if speed else None,
        speedup_most=speed.most if speed else None,
        sequential_spread=schedule.sequential_spread,
        best_other=best and best.name,
        best_other_ratio=best and best.ratio,
        shapes=schedule.key.shapes,
        contest=_contest(placed.contest),
    )
    return wire.ScheduleSummary(**told)


def _contest(table: ContestTable) -> wire.PlanContest:
    candidates = [wire.PlanCandidate(**_same(row, wire.PlanCandidate)) for row in table.rows]
    return wire.PlanContest(
        candidates=candidates, decided=table.is_decided, pinned=table.is_pinned, text=table.text
    )


def _side_by_side(schedule: Schedule) -> wire.SideBySide | None:
    """Convert how batches of a schedule run under load; None: one after the other."""
    runs = schedule.provenance.side_by_side
    if runs is None or not runs.pays:
        return None
    return wire.SideBySide(
        plan_id=schedule.side_by_side_id,
        count=runs.count,
        planner=runs.runtime or SEQUENTIAL,
        latency_us=runs.latency_us,
        gain=runs.gain.median,
        gain_least=runs.gain.least,
        gain_most=runs.gain.most,
    )
