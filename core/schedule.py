"""Schedules: plans with their measurements, as documents to store, show and exchange.

A schedule is JSON, versioned and checksummed. Its provenance says what was predicted, what was
measured, against which sequential baseline, and with which software.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from braid.core.errors import InvalidArtefact, ScheduleNotFound
from braid.core.json_form import from_json, to_json
from braid.core.measurement import SideBySideRuns, Speed
from braid.core.plan import (
    NO_MORE,
    StreamPlan,
    plan_from_json,
    plan_to_json,
    runs_in_sequence,
)
from braid.core.precision import FP32, INT8
from braid.core.quantisation import Quantisation
from braid.core.runtimes import GONE, ONNXRUNTIME, RUNTIMES, plan_text

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
        operators = [op for group in self.groups for op in group]
        if not self.groups or not all(self.groups):
            raise InvalidArtefact("a stage needs at least one group, and no group may be empty")
        if len(operators) != len(set(operators)):
            raise InvalidArtefact(f"an operator appears twice in one stage: {sorted(operators)}")
        if self.strategy not in ("concurrent", "merge"):
            raise InvalidArtefact(f"unknown strategy {self.strategy!r}")

    @property
    def operators(self) -> tuple[int, ...]:
        return tuple(sorted(op for group in self.groups for op in group))


@dataclass(frozen=True, slots=True)
class ScheduleKey:
    """Key of a schedule: a schedule can be used again where the keys are equal."""

    model_digest: str  # SHA-256 of the uploaded file, hex
    device_key: str  # what a measurement on the device depends on
    batch_size: int
    precision: str = "fp32"  # as asked for: of braid.core.precision.ASKED
    planner: str = "ios"  # name and options, canonical text, e.g. "ios(r=3,s=8)"
    shapes: str = ""  # extents of symbols other than the batch, canonical text, e.g. "h=48,w=320"
    format_version: int = SCHEDULE_FORMAT
    accepted_error: float | None = None  # what a registration said instead of the usual tolerance
    samples: str = ""  # digest of the inputs that errors were measured on; empty: seeded ones

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidArtefact(f"batch size must be at least 1, got {self.batch_size}")

    @property
    def id(self) -> str:
        """Stable identifier of at most 24 characters, used as primary key and in file names."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:24]

    def to_json(self) -> dict[str, Any]:
        """JSON form without what a registration did not say; ``ScheduleKey(**document)`` reads it.

        So keys from before there were accepted errors and samples stay the same.
        """
        unsaid = {"accepted_error": None, "samples": ""}.items()
        return {name: value for name, value in to_json(self).items() if (name, value) not in unsaid}


SEQUENTIAL = "sequential"
"""Name of the planner, and id, of the plan that needs no schedule."""

PARALLEL = "parallel"
"""First part of the ids of plans in which units may run side by side."""

MIXED = "mixed"
"""First part of the ids of plans in which units run in engines, too."""

SIDE_BY_SIDE = "side-by-side"
"""First part of the ids of what runs several times at once, each on a part of the threads."""

USUAL_KERNELS: Mapping[str, str] = MappingProxyType({})
"""Choice of kernels that is empty: every unit runs on the kernel that is usually fastest."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Measurement of one way to run the whole model, in turns with other ways in one run."""

    name: str  # planner and options that give it, e.g. "lazy-ios(r=3,s=8)"; or of RUNTIMES
    latency_us: float | None = None  # median; None: it never ran to an end
    spread: float | None = None  # relative: (75th - 25th percentile) / median of its runs
    runs: int = 0  # fewer than others: given up as clearly slower
    speedup: float | None = None  # sequential over this, median of the turns of both; None: few
    max_rel_error: float | None = None  # outputs, relative to the largest element
    also: tuple[str, ...] = ()  # other planners that found the same plan
    remark: str = ""  # why it cannot serve; empty if it could
    activation_bytes: int | None = None  # memory planned for activations; None: not known
    speedup_least: float | None = None  # interval of ``speedup``; None: not recorded
    speedup_most: float | None = None
    precision: str = ""  # that it computes in; empty: that of the schedule's key
    top_agreement: float | None = None  # part of the samples whose top class is the reference's

    @property
    def full_name(self) -> str:
        """Name that no other candidate of the schedule has."""
        return f"{self.name} in {self.precision}" if self.precision else self.name

    @property
    def speed(self) -> Speed | None:
        """Speed beside the sequential plan; None if it was not measured."""
        if self.speedup is None:
            return None
        return Speed(self.speedup, self.speedup_least, self.speedup_most)

    @property
    def erred(self) -> bool:
        """True if the candidate ran and its outputs were refused."""
        return bool(self.remark) and self.max_rel_error is not None


def _engine(candidate: Contender) -> str:
    """Engine that a candidate runs in; "": Braid's own."""
    return candidate.name if candidate.name in RUNTIMES else ""


class Rival(NamedTuple):
    """Fastest candidate of the runtimes that do not serve."""

    ratio: float  # its latency over that of the one that serves
    name: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin and measurements of a schedule. Latencies in microseconds."""

    predicted_us: float | None = None  # sum of the measured stage latencies
    measured_us: float | None = None  # whole model under this plan, at registration
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
    side_by_side: SideBySideRuns | None = None  # runs on parts of the threads; None: not measured
    precision: str = ""  # that was chosen; empty: that of the key
    samples: int = 0  # inputs that errors were measured on; 0: seeded ones
    top_agreement: float | None = None  # part of the samples whose top class is the reference's
    quantisation: Quantisation | None = None  # that INT8 was tried with; None: it was not
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Precision or runtime -> why it took no part."""
    is_decided: bool = False  # service found the order of the candidates; False: contest is open
    again: str = ""  # why the next job of its model makes it again; empty: it does not
    decision: tuple[ContestRow, ...] = ()  # contest at its decision, the winner first


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """One way to run the model that passed the check of its outputs."""

    name: str  # planner that made the plan, or runtime of RUNTIMES
    plan: StreamPlan  # of a runtime: runs where that cannot
    stages: tuple[Stage, ...] = ()
    latency_us: float | None = None  # as measured at registration


SERVES = "serves: "
"""Begins the text of a contest."""


@dataclass(frozen=True, slots=True)
class ContestRow:
    """One candidate of a contest in service, for people."""

    name: str
    pairs: int = 0
    ratio: float | None = None  # its latency over the incumbent's; None: not known
    low: float | None = None  # interval of the ratio
    high: float | None = None
    share: float = 0.0  # of all requests
    runs: int = 0
    latency_us: float | None = None  # of its newest runs, else at the decision or registration
    plan_id: str = ""  # as answered by Infer

    def beside(self, first: ContestRow) -> ContestRow:
        """This row with the latency that its ratio to the incumbent gives, if both are known."""
        if self.ratio is None or first.latency_us is None:  # few runs may put a slower plan ahead
            return self
        return replace(self, latency_us=first.latency_us * self.ratio)


@dataclass(frozen=True, slots=True)
class ContestTable:
    """Candidates of a contest, the incumbent first."""

    rows: tuple[ContestRow, ...]
    is_decided: bool = False
    is_pinned: bool = False

    @property
    def has_runs(self) -> bool:
        return any(row.runs for row in self.rows)

    @property
    def state(self) -> str:
        """``undecided after 40 pairs``; empty for a single candidate that is not pinned."""
        if self.is_pinned:
            return "pinned"
        if len(self.rows) == 1:
            return ""
        pairs = max(row.pairs for row in self.rows)
        after = f" after {pairs} pair{'s' * (pairs > 1)}" if pairs else ""
        return f"{'decided' if self.is_decided else 'undecided'}{after}"

    @property
    def text(self) -> str:
        """``serves: OpenVINO, 4.13 ms; own plan (...) 4.15 ms; undecided after 40 pairs``."""
        first, *others = self.rows
        parts = [f"{SERVES}{_candidate_text(first, ', ')}"]
        parts += [_candidate_text(row, " ") for row in others]
        if not self.has_runs:
            parts.append(f"measured {self._measured}")
        return "; ".join(filter(None, [*parts, self.state]))

    @property
    def _measured(self) -> str:
        """When the latencies of candidates were measured that no request has run yet."""
        if self.is_decided:
            return "at the decision"
        return "in idle time" if any(row.pairs for row in self.rows) else "at registration"


def _candidate_text(row: ContestRow, between: str) -> str:
    name = RUNTIMES.get(row.name, f"own plan ({plan_text(row.name)})")
    return name if row.latency_us is None else f"{name}{between}{row.latency_us / 1e3:.2f} ms"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Plan of one model on one device at one batch size, with its stages and its provenance.

    ``stages`` is empty for planners that make stream plans without stages.
    """

    key: ScheduleKey
    planner: str  # the planner that made ``plan``; may differ from what was asked (portfolio)
    plan: StreamPlan
    stages: tuple[Stage, ...]
    unit_names: tuple[str, ...]  # names of the operators that the indices refer to
    provenance: Provenance = field(default_factory=Provenance)
    others: tuple[PlanCandidate, ...] = ()  # that may take its place, the best one first

    def __post_init__(self) -> None:
        units = len(self.unit_names)
        for candidate in self.candidates:
            launches = len(candidate.plan.launches)
            if launches != units:
                raise InvalidArtefact(f"the plan launches {launches} of {units} units")
            staged = [op for stage in candidate.stages for op in stage.operators]
            if candidate.stages and sorted(staged) != list(range(units)):
                raise InvalidArtefact("the stages do not cover every unit exactly once")

    @property
    def runtime(self) -> str:
        """Runtime that runs the model, of RUNTIMES; ``plan`` runs where it cannot. Or empty."""
        return self.planner if self.planner in RUNTIMES else ""

    def was_right_in(self, runtime: str) -> bool | None:
        """Whether ``runtime`` ran the whole model in FP32 and was right; None: it took no part."""
        ran = self._in_fp32(runtime)
        return None if ran is None else not ran.remark and ran.latency_us is not None

    def latency_in(self, runtime: str) -> float | None:
        """Latency of the whole model in ``runtime`` in FP32, same comparison; None: not known."""
        ran = self._in_fp32(runtime)
        return None if ran is None else ran.latency_us

    def _in_fp32(self, name: str) -> Contender | None:
        named = (one for one in self.provenance.candidates if one.name == name)
        return next((one for one in named if one.precision in ("", FP32)), None)

    def part_saved_from(self, runtime: str) -> float | None:
        """Part of the time in ``runtime`` that the sequential plan saves; None: not measured."""
        sequential_us, runtime_us = self.provenance.sequential_us, self.latency_in(runtime)
        if sequential_us is not None and runtime_us is not None:
            return 1 - sequential_us / runtime_us
        return None

    @property
    def serving_us(self) -> float | None:
        """Measured latency of what serves; None: it is not known."""
        provenance = self.provenance
        return provenance.measured_us if provenance.promoted else provenance.sequential_us

    @property
    def precision(self) -> str:
        return self.provenance.precision or self.key.precision

    @property
    def quantisation(self) -> str:
        """Text of what makes the graph in INT8; empty in another precision."""
        how = self.provenance.quantisation
        return how.text if how is not None and self.precision == INT8 else ""

    @property
    def plan_id(self) -> str:
        """Id of the plan, as answered by Infer: its kind and a hash of its content.

        Equal content has an equal name, also if another planner found it or at another time. The
        content is the plan with its kernels, and its model, shapes, precision and device.
        """
        kind = MIXED if self.plan.parts else PARALLEL
        kind = SEQUENTIAL if runs_in_sequence(self.plan) else kind
        return f"{self.runtime or kind}-{_checksum(self._content)[:16]}"

    @property
    def side_by_side_id(self) -> str:
        """Id of what runs side by side on parts of the threads, as answered by Infer; or empty."""
        runs = self.provenance.side_by_side
        if runs is None:
            return ""
        ran = {"plan": SEQUENTIAL, **_ran_in(runs.runtime), "beside": runs.count}
        return f"{SIDE_BY_SIDE}-{runs.count}-{_checksum({**self._content, **ran})[:16]}"

    @property
    def _content(self) -> dict[str, Any]:
        """Everything that decides what runs."""
        key, how = self.key, self.quantisation
        return {
            **({"quantisation": how} if how else {}),
            "model": key.model_digest,
            "device": key.device_key,
            "shapes": [key.batch_size, key.shapes],
            "precision": self.precision,
            **_ran_in(self.runtime),
            "plan": plan_to_json(self.plan),
            "choices": dict(self.provenance.choices),
        }

    @property
    def chosen(self) -> Contender | None:
        """Candidate that became this schedule; None if that was not recorded."""
        provenance = self.provenance
        fitting = [
            candidate
            for candidate in provenance.candidates
            if candidate.precision in ("", self.precision)
        ]
        named = [candidate for candidate in fitting if candidate.name == self.planner]
        if not named and provenance.measured_us is not None:
            # The planner that was asked for is named with its options.
            named = [
                candidate for candidate in fitting if candidate.latency_us == provenance.measured_us
            ]
        return named[0] if named else None

    @property
    def speed(self) -> Speed | None:
        return self.chosen.speed if self.chosen is not None else None

    @property
    def serving(self) -> Contender | None:
        """Candidate that serves: ``chosen`` or the sequential one; None: that was not recorded."""
        if self.provenance.promoted:
            return self.chosen
        return next((one for one in self.provenance.candidates if one.name == SEQUENTIAL), None)

    @property
    def best_other(self) -> Rival | None:
        """Fastest candidate of the other runtimes, of which Braid's own plans are one.

        None: there is none that could serve, or it is not recorded.
        """
        serving = self.serving
        if serving is None or serving.latency_us is None:
            return None
        ratios = [
            (other.latency_us / serving.latency_us, other.full_name)
            for other in self.provenance.candidates
            if _engine(other) != _engine(serving) and other.latency_us is not None
            if not other.remark
        ]
        return Rival(*min(ratios)) if ratios else None

    @property
    def candidates(self) -> tuple[PlanCandidate, ...]:
        """Ways to run the model that service chooses from; the first one is in force."""
        own = PlanCandidate(self.planner, self.plan, self.stages, self.provenance.measured_us)
        return (own, *self.others)

    @property
    def table(self) -> ContestTable:
        decided = {row.name: row for row in self.provenance.decision}
        rows = [
            replace(
                decided.get(one.name) or ContestRow(one.name, latency_us=one.latency_us),
                plan_id=self.led_by(one.name).plan_id,
            )
            for one in self.candidates
        ]
        return ContestTable(tuple(rows), self.provenance.is_decided)

    def led_by(self, name: str, decision: Sequence[ContestRow] = ()) -> Schedule:
        """This schedule with candidate ``name`` in force; raises ScheduleNotFound.

        ``decision``: the contest that it has won; none: it is open, or was not held.
        """
        candidates = {one.name: one for one in self.candidates}
        if name not in candidates:
            names = ", ".join(candidates)
            raise ScheduleNotFound(f"there is no plan {name!r}; plans of this schedule: {names}")
        first = candidates.pop(name)
        provenance = replace(
            self.provenance,
            is_decided=bool(decision),
            decision=tuple(decision),
            measured_us=first.latency_us,
        )
        if name != self.planner:
            figures = next((x for x in provenance.candidates if x.name == name), Contender(name))
            provenance = replace(
                provenance,
                predicted_us=None,
                gap=None,
                spread=figures.spread,
                max_abs_error=None,
                max_rel_error=figures.max_rel_error,
                top_agreement=figures.top_agreement,
            )
        return replace(
            self,
            planner=name,
            plan=first.plan,
            stages=first.stages,
            others=tuple(candidates.values()),
            provenance=provenance,
        )

    @property
    def is_asked(self) -> bool:
        """True if the next job of its model makes it again."""
        return bool(self.provenance.again)

    @property
    def sequential_spread(self) -> float | None:
        """Spread of the sequential plan's runs: (75th - 25th percentile) / median."""
        baseline = self.provenance.candidates[:1]
        return baseline[0].spread if baseline else None


def _ran_in(runtime: str) -> dict[str, Any]:
    """Part of what an id is made of; ids from before there was a second runtime stay the same."""
    named = {"runtime": runtime} if runtime not in ("", ONNXRUNTIME) else {}
    return {"onnxruntime": runtime == ONNXRUNTIME, **named}


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    body = {
        "format": SCHEDULE_FORMAT,
        **to_json(schedule),
        "key": schedule.key.to_json(),
        "plan": plan_to_json(schedule.plan),
        "others": [{**to_json(one), "plan": plan_to_json(one.plan)} for one in schedule.others],
    }
    return {**body, "sha256": _checksum(body)}


def schedule_from_json(document: Any) -> Schedule:
    """Read a schedule; raises InvalidArtefact, also for another version or a wrong checksum."""
    if not isinstance(document, dict):
        raise InvalidArtefact("a schedule is a JSON object")
    body = {name: value for name, value in document.items() if name != "sha256"}
    if body.get("format") != SCHEDULE_FORMAT:
        raise InvalidArtefact(
            f"schedule format {body.get('format')!r} is not {SCHEDULE_FORMAT}; schedule again"
        )
    if document.get("sha256") != _checksum(body):
        raise InvalidArtefact("the schedule's checksum does not match: the file was changed")
    if body.get("planner") in GONE:
        raise InvalidArtefact(f"the schedule is of {body['planner']}, {NO_MORE}")
    try:
        plan_from_json(body["plan"])  # refuses plans that are no more
        ScheduleKey(**body["key"])  # and this other fields
        schedule = from_json(Schedule, body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidArtefact(f"the schedule is malformed: {error!r}") from error
    kept = tuple(one for one in schedule.provenance.candidates if one.name not in GONE)
    return replace(schedule, provenance=replace(schedule.provenance, candidates=kept))


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
