"""Which plan of a model serves, by measurements of all plans in the same turns.

    measurements ──wrong, failing?──> refused       a single planner: its plan, unless refused
        └─ fastest of those faster than sequential without doubt    the portfolio: the winner,
                                                                    the simpler one if it is a draw

Two that ran in the same turns are compared turn by turn (core/sign_test.py). A
plan serves in place of the sequential one only if the interval of its speed-up lies above 1; a plan
that runs its units one after the other is the sequential one, whatever their order
(docs/decisions/0030-one-definition-of-speed.md). In a precision other than FP32 the sequential plan
may be refused like any other; then the model goes on in FP32. Where it errs too much in FP32 (of an
ill-conditioned model rounding moves the outputs), it gives way to any that does not, and those that
err no more than it does may serve.

By measurements in doubt (``PlanMeasurement.doubt``) a plan serves for the time being of which even
the slowest run took less than the fastest one of the sequential plan; otherwise that one serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from braid.core.measurement import PlanMeasurement, Speed, speed_text
from braid.core.plan import StreamPlan, runs_in_sequence, sequential_plan
from braid.core.precision import FP32
from braid.core.schedule import SEQUENTIAL, Contender
from braid.core.sign_test import sign_test_interval, speed_beside
from braid.scheduler.planners import Planned

LEAST_GAIN = 0.005
"""Relative gain that a plan must have over a simpler one."""

LEAST_RUNS = 3
"""Runs of a plan and of the sequential one, by which in doubt the plan may be faster."""

_MOST_WAITS = float(1 << 32)

NOISE_MARGIN = 0.01
"""Relative difference of two medians of the same plan, for plans without turns in common."""


@dataclass(frozen=True, slots=True)
class ComparedPlans:
    """Plans to compare: the sequential one, then all others, then other runtimes."""

    planned: tuple[Planned, ...]  # the first one's plan is sequential
    runtimes: tuple[str, ...]  # with the whole model
    precision: str = ""  # named where candidates of several run against each other

    @staticmethod
    def of(
        planned: Sequence[Planned], units: int, runtimes: Sequence[str] = (), precision: str = ""
    ) -> ComparedPlans:
        """Plans that a planner found; those that are sequential in effect count as one."""
        plan = sequential_plan(units)
        in_sequence = [model for model in planned if runs_in_sequence(model.plan)]
        same = [model for model in in_sequence if model.plan == plan]
        also = tuple(name for model in in_sequence for name in (model.planner, *model.also))
        first = Planned(
            SEQUENTIAL,
            plan,
            next((model.stages for model in same), ()),
            next((model.predicted_us for model in same), None),
            gap=next((model.gap for model in same), None),
            also=tuple(name for name in also if name != SEQUENTIAL),
        )
        others = (model for model in planned if not runs_in_sequence(model.plan))
        return ComparedPlans((first, *others), tuple(runtimes), precision)

    @property
    def plans(self) -> list[StreamPlan]:
        """Plans in the order in which the device is given them."""
        return [model.plan for model in self.planned]

    @property
    def complexities(self) -> list[float]:
        """Number of points where threads wait for each other; of a plan with parts in engines, and
        of another runtime, more than of any other plan."""
        waits = [math.inf if model.plan.parts else _waits(model.plan) for model in self.planned]
        return [*waits, *[_MOST_WAITS] * len(self.runtimes)]


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Contender that serves, and why the one that was asked for does not."""

    contenders: tuple[Contender, ...]  # in the order of the measurements
    chosen: int  # the contender that the schedule is about
    fallback: int  # its plan, or the one that runs if another runtime cannot
    reason: str = ""  # why the sequential plan serves instead; empty if the chosen one does
    doubt: str = ""  # why it serves for the time being only; empty: it was decided


def choose_plan(
    plans: ComparedPlans,
    measurements: Sequence[PlanMeasurement],
    tolerance: float,
    *,
    choose: bool,
    precision: str = FP32,
    on_chosen_kernels: bool = False,
) -> PlanChoice:
    """Choose the contender that serves.

    Args:
        measurements: of the plans, in the same order.
        tolerance: of outputs, relative to the largest element.
        choose: take the best (the portfolio), not the plan of the one planner that was asked.
        precision: in which the plans computed ...
        on_chosen_kernels: ... and whether on others than the usual kernels. What serves meanwhile
            is sequential, in FP32, on the usual ones.
    """
    contenders = contenders_of(plans, measurements, tolerance, is_exact=precision == FP32)
    doubt = measurements[0].doubt
    if precision != FP32 and contenders[0].remark:
        return PlanChoice(contenders, 0, 0, _too_coarse(contenders[0], precision), doubt)
    fit = fit_to_serve(contenders, measurements)
    if not choose:
        last = len(contenders) - 1  # sequential itself, if that is what the planner found
        gains = not last or (last in fit if doubt else _gains(contenders[last].speed))
        reason = _refusal(contenders[last], doubt, gains=gains)
        is_better = precision != FP32 or (on_chosen_kernels and not contenders[0].remark)
        if reason and is_better:  # the sequential plan is right, and better than what serves
            return PlanChoice(contenders, 0, 0, doubt=doubt)
        return PlanChoice(contenders, last, last, reason, doubt)
    if contenders[0].remark:
        within = [i for i in fit if (contenders[i].max_rel_error or 0.0) <= tolerance]
        fit = within or fit
    simple = plans.complexities
    chosen = best_of(simple, contenders, measurements, fit)
    own = [index for index in fit if index < len(plans.planned) and simple[index] < math.inf]
    fallback = best_of(simple, contenders, measurements, own or [0])
    if chosen < len(plans.planned):
        fallback = chosen
    return PlanChoice(contenders, chosen, fallback, doubt=doubt)


def fit_to_serve(
    contenders: Sequence[Contender], measurements: Sequence[PlanMeasurement]
) -> list[int]:
    """Indices of the baseline, and of the others that are right and stayed to the end.

    In doubt those of all that are right and faster than the baseline in every run; the baseline if
    none is.
    """
    if measurements[0].doubt:
        return [
            index
            for index, contender in enumerate(contenders)
            if not contender.remark and _always_took_less(measurements[index], measurements[0])
        ] or [0]
    turns = [len(measurement.ratios) for measurement in measurements]
    return [
        index
        for index, contender in enumerate(contenders)
        if index == 0 or (not contender.remark and turns[index] == max(turns))
    ]


def contenders_of(
    plans: ComparedPlans,
    measurements: Sequence[PlanMeasurement],
    tolerance: float,
    *,
    is_exact: bool,
) -> tuple[Contender, ...]:
    """Candidates with their measurements; a remark says why one cannot serve at any speed.

    Args:
        measurements: of them.
        tolerance: of outputs, relative to the largest element ...
        is_exact: ... and whether others may err as much as the sequential plan, if that is more.
    """
    named = [(model.planner, model.also) for model in plans.planned]
    named += [(runtime, ()) for runtime in plans.runtimes]
    first, *others = (
        replace(_contender(name, also, measurement), precision=plans.precision)
        for (name, also), measurement in zip(named, measurements, strict=True)
    )
    error = first.max_rel_error
    allowed = tolerance
    if is_exact and error is not None and tolerance < error < math.inf:
        allowed = error
    first = replace(first, remark=_remark(measurements[0], tolerance))
    if allowed > tolerance:
        ill = "rounding moves the outputs of this model: candidates that err no more may serve"
        first = replace(first, remark=f"{first.remark}; {ill}")
    return first, *(
        replace(contender, remark=_remark(measurement, allowed))
        for contender, measurement in zip(others, measurements[1:], strict=True)
    )


def _contender(name: str, also: tuple[str, ...], measurement: PlanMeasurement) -> Contender:
    speed = sign_test_interval(measurement.ratios)
    return Contender(
        name,
        latency_us=measurement.latency_us,
        spread=measurement.spread,
        runs=measurement.runs,
        speedup=speed.median if speed else None,
        speedup_least=speed.least if speed else None,
        speedup_most=speed.most if speed else None,
        max_rel_error=measurement.max_rel_error,
        activation_bytes=measurement.activation_bytes,
        also=also,
        top_agreement=measurement.top_agreement,
    )


def _remark(measurement: PlanMeasurement, tolerance: float) -> str:
    """Reason that a contender cannot serve at any speed; empty if it can."""
    if measurement.problem:
        return measurement.problem
    error = math.nan if measurement.max_rel_error is None else measurement.max_rel_error
    if not error <= tolerance:  # also refuses NaN
        where = measurement.lost_in and f"; most is lost in {measurement.lost_in}"
        return (
            f"outputs differ by {error:.2g} of the largest element, {tolerance:.2g} is allowed"
            f"{where}"
        )
    return ""


def _too_coarse(sequential: Contender, precision: str) -> str:
    """Reason why no plan in this precision may serve."""
    return (
        f"the sequential plan in FP32 goes on serving: in {precision} {sequential.remark}; "
        "register with a larger accepted error (--accept-error) to serve it all the same"
    )


def _refusal(asked: Contender, doubt: str, *, gains: bool) -> str:
    """Reason why the plan of the only planner may not serve; empty if it may."""
    if asked.remark or gains:
        return _refusal_of_errors(asked)
    if doubt:
        return f"the sequential plan goes on serving: nothing is decided yet, {doubt}"
    return (
        "the sequential plan goes on serving: the schedule is not faster without doubt, its "
        f"speed-up over sequential is {speed_text(asked.speed, 'not known')}"
    )


def _refusal_of_errors(contender: Contender) -> str:
    """Reason why a failing or wrong plan may not serve; empty if the plan is right."""
    return contender.remark and f"the sequential plan goes on serving: {contender.remark}"


def best_of(
    complexities: Sequence[Any],
    contenders: Sequence[Contender],
    measurements: Sequence[PlanMeasurement],
    fit: Sequence[int],
) -> int:
    """Index of the fastest contender that gains over sequential; in a draw, of the simplest.

    Args:
        complexities: of all contenders; of two that draw, the one with the lesser serves.
        contenders: the sequential plan first.
        measurements: in the same order.
        fit: indices of those that may serve.
    """
    if 0 not in fit:
        return min(fit, key=lambda index: contenders[index].latency_us or math.inf)
    faster = [index for index in fit if index == 0 or _gains(contenders[index].speed)]
    fastest = min(faster[1:] or faster, key=lambda index: by_speed(contenders[index]))
    as_fast = [i for i in faster[1:] if not _is_faster(measurements[fastest], measurements[i])] or [
        fastest
    ]
    return min(as_fast, key=lambda index: (complexities[index], *by_speed(contenders[index])))


def by_speed(contender: Contender) -> tuple[float, float]:
    """Sorts the fastest first: by turns beside the sequential plan, then by the median."""
    return -(contender.speedup or 0.0), contender.latency_us or math.inf


def _gains(speed: Speed | None) -> bool:
    """True if the whole interval of a speed is above 1, and its median by ``LEAST_GAIN``."""
    return speed is not None and speed.is_faster and speed.median > 1.0 + LEAST_GAIN


def _is_faster(one: PlanMeasurement, other: PlanMeasurement) -> bool:
    """True if ``one`` is the faster, by the turns that both ran in, else by their medians."""
    if one.turns_us and len(one.turns_us) == len(other.turns_us):
        return _gains(speed_beside(one.turns_us, other.turns_us))
    return (other.latency_us or math.inf) > (one.latency_us or math.inf) * (1.0 + NOISE_MARGIN)


def _always_took_less(one: PlanMeasurement, other: PlanMeasurement) -> bool:
    """True if the slowest run of ``one`` took less than the fastest one of ``other``."""
    enough = min(one.runs, other.runs) >= LEAST_RUNS
    return enough and max(one.range_us, default=math.inf) < min(other.range_us, default=0.0)


def _waits(plan: StreamPlan) -> float:
    """Number of points where the threads of a plan wait for each other."""
    waits = sum(len(launch.waits) for launch in plan.launches)
    return len(plan.barriers) + waits + plan.streams - 1  # the last ones at the end
