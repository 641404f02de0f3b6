"""Schedules: what a planner finds, as an artefact that can be stored, shown and exchanged.

    Schedule = stages + where it came from        StreamPlan (core/plan.py) = how it is launched

A schedule is JSON, versioned and checksummed. Its provenance says what was predicted, what was
measured, against which sequential baseline, and with which software.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from core.errors import InvalidArtefact
from core.plan import StreamPlan, plan_from_json, plan_to_json

SCHEDULE_FORMAT = 1

Strategy = Literal["concurrent", "merge"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups of operators that start together; the next stage waits for all of them.

    Operators inside one group run in the order given, on one stream.
    Operators in different groups share no edge, so they may overlap.
    With strategy ``merge`` all operators run as one merged kernel.
    """

    groups: tuple[tuple[int, ...], ...]  # indices into OpGraph.operators
    strategy: Strategy = "concurrent"
    latency_us: float | None = None  # as measured or predicted when the schedule was made

    def __post_init__(self) -> None:
        seen = [op for group in self.groups for op in group]
        if not self.groups or not all(self.groups):
            raise InvalidArtefact("a stage needs at least one group, and no group may be empty")
        if len(seen) != len(set(seen)):
            raise InvalidArtefact(f"an operator appears twice in one stage: {sorted(seen)}")
        if self.strategy not in ("concurrent", "merge"):
            raise InvalidArtefact(f"unknown strategy {self.strategy!r}")

    @property
    def operators(self) -> tuple[int, ...]:
        """All operators of the stage, ascending."""
        return tuple(sorted(op for group in self.groups for op in group))


@dataclass(frozen=True, slots=True)
class ScheduleKey:
    """What a schedule depends on; equal keys mean the schedule can be used again."""

    model_digest: str  # SHA-256 of the uploaded file, hex
    device_key: str  # what a measurement on the device depends on
    batch_size: int
    precision: str = "fp32"
    planner: str = "ios"  # name and options, canonical text, e.g. "ios(r=3,s=8)"
    shapes: str = ""  # extents of symbols other than the batch, canonical text, e.g. "h=48,w=320"
    format_version: int = SCHEDULE_FORMAT
    accepted_error: float | None = None  # what a registration said instead of the usual tolerance

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidArtefact(f"batch size must be at least 1, got {self.batch_size}")

    @property
    def id(self) -> str:
        """Stable identifier of at most 24 characters, used as primary key and in file names."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:24]

    def to_json(self) -> dict[str, Any]:
        """JSON form; ``ScheduleKey(**document)`` reads it. What few keys have is left out."""
        document = {name: getattr(self, name) for name in self.__slots__}
        if self.accepted_error is None:
            del document["accepted_error"]
        return document


SEQUENTIAL = "sequential"
"""The planner, and the plan id, of the plan that needs no schedule."""

NO_CHOICES: Mapping[str, str] = MappingProxyType({})
"""Every unit runs on the kernel that is usually fastest."""

ONNXRUNTIME = "onnxruntime"
"""The planner of a schedule whose model runs in ONNX Runtime; its plan is what else would run."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run the whole model, as measured beside the others in one run."""

    name: str  # planner and options that give it, e.g. "lazy-ios(r=3,s=8)"; or ONNXRUNTIME
    latency_us: float | None = None  # median; None: it never ran to an end
    spread: float | None = None  # relative: (75th - 25th percentile) / median of its runs
    runs: int = 0  # fewer than others: given up as clearly slower
    speedup: float | None = None  # sequential over this, median of the rounds both ran in
    max_rel_error: float | None = None  # outputs, relative to the largest element
    also: tuple[str, ...] = ()  # other planners that found the same plan
    remark: str = ""  # why it cannot serve; empty if it could
    activation_bytes: int | None = None  # memory planned for activations; None: not known

    @property
    def erred(self) -> bool:
        """Whether it ran, and its outputs were refused."""
        return bool(self.remark) and self.max_rel_error is not None

    def to_json(self) -> dict[str, Any]:
        """JSON form, the inverse of ``contender_from_json``."""
        return {name: getattr(self, name) for name in self.__slots__} | {"also": list(self.also)}


def contender_from_json(document: Mapping[str, Any]) -> Contender:
    """Read one contender."""
    return Contender(**{**document, "also": tuple(document.get("also", ()))})


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a schedule came from and what was seen of it. Latencies in microseconds."""

    predicted_us: float | None = None  # sum of the measured stage latencies
    measured_us: float | None = None  # whole model under this plan
    sequential_us: float | None = None  # whole model under the sequential plan, same run
    spread: float | None = None  # relative: (75th - 25th percentile) / median of the runs
    stages_measured: int = 0  # new measurements this schedule cost
    stages_reused: int = 0  # measurements found in the store
    search_seconds: float = 0.0
    gap: float | None = None  # proven relative distance to the optimum; 0.0 = exact
    max_abs_error: float | None = None  # outputs against the sequential fp32 reference
    max_rel_error: float | None = None  # the same, relative to the largest element
    tolerance: float | None = None  # what ``max_rel_error`` may be
    promoted: bool = True  # False: the sequential plan serves, and ``reason`` says why
    reason: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    unit_us: Mapping[str, float] = field(default_factory=dict)  # units alone, where measured
    created: str = ""  # ISO 8601, UTC
    candidates: tuple[Contender, ...] = ()  # all that were measured for this, sequential first
    kernels: Mapping[str, str] = field(default_factory=dict)  # unit -> variant, where measured
    choices: Mapping[str, str] = field(default_factory=dict)  # signature -> unusual variant

    @property
    def speedup(self) -> float | None:
        """Sequential over measured latency; above 1 is faster than sequential."""
        if not self.measured_us or not self.sequential_us:
            return None
        return self.sequential_us / self.measured_us

    def to_json(self) -> dict[str, Any]:
        """JSON form, the inverse of ``provenance_from_json``."""
        document = {name: getattr(self, name) for name in self.__slots__}
        document["software"] = dict(self.software)
        document["unit_us"] = dict(self.unit_us)
        document["kernels"] = dict(self.kernels)
        document["choices"] = dict(self.choices)
        document["candidates"] = [contender.to_json() for contender in self.candidates]
        return document


def provenance_from_json(document: Mapping[str, Any]) -> Provenance:
    """Read a provenance; what older versions did not record is at its default."""
    candidates = tuple(map(contender_from_json, document.get("candidates", ())))
    return Provenance(**{**document, "candidates": candidates})


@dataclass(frozen=True, slots=True)
class Schedule:
    """The plan of one model on one device at one batch size, and how it came about.

    ``stages`` is empty for planners that make stream plans without stages.
    """

    key: ScheduleKey
    planner: str  # the planner that made ``plan``; may differ from what was asked (portfolio)
    plan: StreamPlan
    stages: tuple[Stage, ...]
    unit_names: tuple[str, ...]  # names of the operators that the indices refer to
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self) -> None:
        units = len(self.unit_names)
        if len(self.plan.launches) != units:
            raise InvalidArtefact(f"the plan launches {len(self.plan.launches)} of {units} units")
        staged = [op for stage in self.stages for op in stage.operators]
        if self.stages and sorted(staged) != list(range(units)):
            raise InvalidArtefact("the stages do not cover every unit exactly once")

    @property
    def in_onnxruntime(self) -> bool:
        """Whether ONNX Runtime runs the model, and ``plan`` only if it cannot."""
        return self.planner == ONNXRUNTIME

    @property
    def id(self) -> str:
        """Identifier of the plan that ran, as answered by Infer."""
        return self.key.id


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """JSON form with a checksum over everything else."""
    body = {
        "format": SCHEDULE_FORMAT,
        "key": schedule.key.to_json(),
        "planner": schedule.planner,
        "plan": plan_to_json(schedule.plan),
        "stages": [
            {
                "groups": [list(group) for group in stage.groups],
                "strategy": stage.strategy,
                "latency_us": stage.latency_us,
            }
            for stage in schedule.stages
        ],
        "unit_names": list(schedule.unit_names),
        "provenance": schedule.provenance.to_json(),
    }
    return {**body, "sha256": _checksum(body)}


def schedule_from_json(document: Any) -> Schedule:
    """Read a schedule.

    Raises:
        InvalidArtefact: another format version, a wrong checksum, a missing field.
    """
    if not isinstance(document, dict):
        raise InvalidArtefact("a schedule is a JSON object")
    body = {name: value for name, value in document.items() if name != "sha256"}
    if body.get("format") != SCHEDULE_FORMAT:
        raise InvalidArtefact(
            f"schedule format {body.get('format')!r} is not {SCHEDULE_FORMAT}; schedule again"
        )
    if document.get("sha256") != _checksum(body):
        raise InvalidArtefact("the schedule's checksum does not match: the file was changed")
    try:
        return Schedule(
            key=ScheduleKey(**body["key"]),
            planner=body["planner"],
            plan=plan_from_json(body["plan"]),
            stages=tuple(
                Stage(
                    tuple(tuple(group) for group in stage["groups"]),
                    stage["strategy"],
                    stage["latency_us"],
                )
                for stage in body["stages"]
            ),
            unit_names=tuple(body["unit_names"]),
            provenance=provenance_from_json(body["provenance"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArtefact(f"the schedule is malformed: {error!r}") from error


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
