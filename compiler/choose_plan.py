"""Which plan of a model serves first, and which others service chooses from (scheduler/contest.py).

    measurements ──wrong, failing?──> refused       a single planner: its plan, unless refused
        └─ best estimate; the simpler one in a draw     the portfolio: also the next best two

Plans are compared turn by turn, and the median of the ratios is the estimate; none has a privilege.
A plan that runs its units one after the other is the sequential one, whatever their order
(docs/decisions/0030-one-definition-of-speed.md). In a precision other than FP32 the sequential plan
may be refused like any other; then the model goes on in FP32. Where it errs too much in FP32 (of an
ill-conditioned model rounding moves the outputs), it gives way to any that does not, and those that
err no more than it does may serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from braid.core.margins import CANDIDATE_RATIO, DRAW, RUNTIME_RATIO
from braid.core.measurement import PlanMeasurement, speed_text
from braid.core.plan import StreamPlan, runs_in_sequence, sequential_plan
from braid.core.precision import FP32
from braid.core.schedule import SEQUENTIAL, Contender
from braid.core.sign_test import sign_test_interval
from braid.scheduler.planners import Planned

_MOST_WAITS = float(1 << 32)


MOST_CANDIDATES, MOST_OWN = 3, 2
"""Candidates that service chooses from, and those of them that are Braid's own plans."""


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
    others: tuple[int, ...] = ()  # that service chooses from beside the chosen one, best first


def choose_plan(
    plans: ComparedPlans,
    measurements: Sequence[PlanMeasurement],
    tolerance: float,
    *,
    choose: bool,
    precision: str = FP32,
    on_chosen_kernels: bool = False,
) -> PlanChoice:
    """Choose the contender that serves first.

    Args:
        tolerance: of outputs, relative to the largest element.
        choose: take the best (the portfolio), not the plan of the one planner that was asked.
        on_chosen_kernels: whether others than the usual kernels ran. What serves meanwhile is
            sequential, in FP32, on the usual ones.
    """
    contenders = contenders_of(plans, measurements, tolerance, is_exact=precision == FP32)
    if precision != FP32 and contenders[0].remark:
        return PlanChoice(contenders, 0, 0, _too_coarse(contenders[0], precision))
    fit, speeds = fit_to_serve(contenders, measurements), speeds_of(measurements)
    if not choose:
        last = len(contenders) - 1  # sequential itself, if that is what the planner found
        gains = last in fit and best_of(plans.complexities, speeds, sorted({0, last})) == last
        reason = _refusal(contenders[last], gains=gains)
        is_better = precision != FP32 or (on_chosen_kernels and not contenders[0].remark)
        if reason and is_better:  # the sequential plan is right, and better than what serves
            return PlanChoice(contenders, 0, 0)
        return PlanChoice(contenders, last, last, reason)
    if contenders[0].remark:
        within = [i for i in fit if (contenders[i].max_rel_error or 0.0) <= tolerance]
        fit = within or fit
    return choose_among(plans, contenders, measurements, fit)


def choose_among(
    plans: ComparedPlans,
    contenders: tuple[Contender, ...],
    measurements: Sequence[PlanMeasurement],
    fit: Sequence[int],
) -> PlanChoice:
    """Choose the best of the contenders that are fit to serve."""
    speeds = speeds_of(measurements)
    chosen = best_of(plans.complexities, speeds, fit)
    fallback = chosen if chosen < len(plans.planned) else _best_own(plans, speeds, fit)
    others = others_of(plans, measurements, fit, chosen)
    return PlanChoice(contenders, chosen, fallback, others=others)


def fit_to_serve(
    contenders: Sequence[Contender], measurements: Sequence[PlanMeasurement]
) -> list[int]:
    """Indices of the contenders that are right and stayed to the end; the baseline if none is.

    Ratios of fewer turns are of another machine than those of all.
    """
    turns = [len(measurement.ratios) for measurement in measurements]
    return [
        index
        for index, contender in enumerate(contenders)
        if not contender.remark and contender.latency_us and turns[index] == max(turns)
    ] or [0]


def speeds_of(measurements: Sequence[PlanMeasurement]) -> list[float]:
    """Estimated speeds beside the baseline: medians over turns; 0 of what was not measured."""
    return [median(one.ratios) if one.ratios else 0.0 for one in measurements]


def best_of(complexities: Sequence[Any], speeds: Sequence[float], fit: Sequence[int]) -> int:
    """Index of the fastest contender that is fit to serve; in a draw, of the least complex."""
    best = max(speeds[index] for index in fit)
    draws = [index for index in fit if speeds[index] * (1.0 + DRAW) >= best]
    return min(draws, key=lambda index: (complexities[index], -speeds[index]))


def others_of(
    plans: ComparedPlans, measurements: Sequence[PlanMeasurement], fit: Sequence[int], chosen: int
) -> tuple[int, ...]:
    """Indices of contenders that service chooses from beside the chosen one, the best one first.

    Those are near it, or were ahead of it in a turn: a busy machine tells no more. Of Braid's own
    plans there are ``MOST_OWN`` at most, and the fastest other runtime takes part: beside a busy
    core the lanes of a plan wait for each other, threads that take work do not
    (docs/decisions/0094-requests-choose.md).
    """
    speeds, taken = speeds_of(measurements), [chosen]
    best, turns = max(speeds[index] for index in fit), measurements[chosen].ratios
    for index in sorted(fit, key=lambda index: -speeds[index]):
        runs = sum(at >= len(plans.planned) for at in taken)  # of other runtimes
        is_own = index < len(plans.planned)
        most = CANDIDATE_RATIO if is_own or runs else RUNTIME_RATIO
        pairs = zip(measurements[index].ratios, turns, strict=True)
        is_near = speeds[index] * most >= best or any(own > other for own, other in pairs)
        has_place = not is_own or len(taken) - runs < MOST_OWN
        if index not in taken and is_near and has_place and len(taken) < MOST_CANDIDATES:
            taken.append(index)
    return tuple(taken[1:])


def _best_own(plans: ComparedPlans, speeds: Sequence[float], fit: Sequence[int]) -> int:
    """Index of the plan that runs where another runtime cannot."""
    simple = plans.complexities
    own = [index for index in fit if index < len(plans.planned) and simple[index] < math.inf]
    return best_of(simple, speeds, own or [0])


def contenders_of(
    plans: ComparedPlans,
    measurements: Sequence[PlanMeasurement],
    tolerance: float,
    *,
    is_exact: bool,
) -> tuple[Contender, ...]:
    """Candidates with their measurements; a remark says why one cannot serve at any speed.

    ``tolerance``: of outputs, relative to the largest element. With ``is_exact`` others may err as
    much as the sequential plan, if that is more.
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


def _refusal(asked: Contender, *, gains: bool) -> str:
    """Reason why the plan of the only planner may not serve; empty if it may."""
    if asked.remark:
        return f"the sequential plan goes on serving: {asked.remark}"
    if gains:
        return ""
    return (
        "the sequential plan goes on serving: the schedule is not faster, its speed-up over "
        f"sequential is {speed_text(asked.speed, 'not known')}"
    )


def _waits(plan: StreamPlan) -> float:
    """Number of points where the threads of a plan wait for each other."""
    waits = sum(len(launch.waits) for launch in plan.launches)
    return len(plan.barriers) + waits + plan.streams - 1  # the last ones at the end
