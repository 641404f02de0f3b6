"""Comparison of whole models: errors and latency of each contender.

    each once: errors ──wrong or failing ones leave──> rounds, all contenders in turns
         └─ after 2, 4, 8 rounds the clearly slower ones leave ─> final rounds of those left
    rounds in which other processes had the cores do not count  ──too many──> in doubt

Each contender runs once a round, in an order that rotates, so that drift hits all alike; in a pause
before the run thread pools go to sleep. A quick one runs twice and the second run counts: when it
serves, it finds its weights in the caches, not those of a dozen others. Where runs take so long
that this does not show, there are no final rounds: rounds go on until the time is used up.
Contender 0 is the baseline and always stays. The numerical reference is none of the contenders: it
is the plain interpreter over registry kernels in fp32.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from statistics import median
from time import monotonic

import torch

from braid.core.errors import BraidError, DeviceLost, InvalidRequest, WorkerFault
from braid.core.measurement import PlanMeasurement
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.timing.contenders import PAUSE_S, TimedContender, sample_of
from braid.engine.timing.counted_rounds import MOST_SPREAD, CountedRounds
from braid.engine.timing.final_rounds import (
    FinalRoundsOptions,
    last_contenders,
    run_final_rounds,
    still_there,
)
from braid.engine.timing.runs import Tensors
from braid.engine.timing.samples import reduce_samples

_LEAVES_ABOVE = {2: 1.25, 4: 1.08, 8: 1.03, 16: 1.015}
"""Rounds -> factor: a contender whose *best* run is this far above the best median leaves then."""

_LEAST_FINAL_ROUNDS = 0.2
"""Least time of the final rounds, as a fraction of the rounds before them: a guess."""


@dataclass(frozen=True, slots=True)
class Check:
    """Inputs to find errors on, and what the reference makes of them."""

    inputs: Tensors
    reference: Tensors
    samples: int = 0  # rows whose top class counts; 0: these are seeded inputs


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Tolerance, rounds and time of a comparison."""

    tolerance: float  # of outputs, relative to the largest element; above it a contender runs once
    min_rounds: int = 5
    max_rounds: int = 40  # of contenders that are not quick
    quick_rounds: int = 8  # rounds of quick contenders, before the final rounds
    budget_s: float = 10.0  # a round that began is finished, and min_rounds are always held
    patience_s: float = 10.0  # for rounds that do not count, beside the budget
    pause_s: float = PAUSE_S
    final_rounds: FinalRoundsOptions | None = field(default_factory=FinalRoundsOptions)

    @staticmethod
    def brief(tolerance: float) -> ComparisonOptions:
        """Options to tell within a few runs who is hopeless."""
        return ComparisonOptions(
            tolerance,
            min_rounds=3,
            quick_rounds=5,
            max_rounds=5,
            budget_s=2.0,
            patience_s=2.0,
            final_rounds=None,
        )


def compare(
    contenders: Sequence[TimedContender],
    checks: Iterable[Check],
    options: ComparisonOptions,
    pause: YieldToRequests = no_pause,
    counted: CountedRounds | None = None,
) -> Generator[float | None, None, list[PlanMeasurement]]:
    """Measure contenders, the first being the baseline; yields the fraction done after each run.

    If the comparison is in doubt, all results say why, and none has left as slower. Of one that is
    alone nothing is to be decided.

    Args:
        contenders: what can run the model.
        checks: inputs to find errors on, at least one, read one after the other; the first one's
            are those that runs are timed on.
        pause: lets inference go first.
        counted: judges the rounds; None: by the waits of this process's threads.

    Raises:
        WorkerFault: the baseline does not run.
    """
    inputs: Tensors | None = None
    for check in checks:
        inputs = check.inputs if inputs is None else inputs
        for contender in contenders:
            contender.sampler = contenders[0].sampler
            _check(contender, check, pause)
            yield 0.0
    assert inputs is not None, "nothing to find errors on"
    if contenders[0].problem:
        raise WorkerFault(f"the baseline does not run: {contenders[0].problem}")
    error = contenders[0].max_rel_error or 0.0
    least = error if isfinite(error) else 0.0
    right = [x for x in contenders if x is contenders[0] or _is_right(x, options, least)]
    began, judge = monotonic(), counted or CountedRounds(options.patience_s)
    staying = yield from _run_rounds(right, inputs, options, judge, pause)
    finals = options.final_rounds if len(staying) > 1 and staying[0].is_quick else None
    is_enough = not judge.has_given_up or (finals is None and judge.counted >= options.min_rounds)
    if finals is not None and is_enough:
        staying = last_contenders(staying, contenders[0], finals)
        rounds = _part_of_all(monotonic() - began, 1.0, options.budget_s)
        until = began + options.budget_s
        for fraction in run_final_rounds(staying, inputs, finals, until, judge, pause):
            yield fraction and rounds + (1 - rounds) * fraction
        turns = len(contenders[0].final_turns_us)
        is_enough = not judge.has_given_up or turns >= finals.min_turns
        staying = still_there(staying)
    doubt = ""
    if len(right) > 1:
        is_lost = not is_enough or judge.has_lost_too_many
        doubt = judge.reason if is_lost else _doubt_by_spread(staying)
    if doubt or not is_enough:
        return [_doubtful(contender, doubt) for contender in contenders]
    return [_result(contender, contenders[0], contender in staying) for contender in contenders]


def _run_rounds(
    staying: Sequence[TimedContender],
    inputs: Tensors,
    options: ComparisonOptions,
    judge: CountedRounds,
    pause: YieldToRequests,
) -> Generator[float | None, None, list[TimedContender]]:
    """Run rounds until more of them would tell little; returns the contenders that stay."""
    baseline, staying = staying[0], list(staying)
    began, reported = monotonic(), 0.0
    while not judge.has_given_up:
        round_ = judge.counted
        rounds = options.quick_rounds if baseline.is_quick else options.max_rounds
        is_enough = monotonic() - began >= options.budget_s or len(staying) == 1
        if round_ >= rounds or (round_ >= options.min_rounds and is_enough):
            break
        judge.begin()
        waits = []
        first = round_ % len(staying)
        for place, contender in enumerate([*staying[first:], *staying[:first]], start=1):
            if contender.is_quick:
                contender.run(inputs, pause)
                yield None
            sample = sample_of(contender, inputs, pause, options.pause_s)
            contender.samples_us[round_] = sample.us
            waits.append([sample.waited])
            held, taken_s = round_ + place / len(staying), monotonic() - began
            if baseline.is_quick:
                part = _part_of_all(taken_s, held / rounds, options.budget_s)
            else:  # min_rounds are held in any case
                spent = min(taken_s / options.budget_s, held / options.min_rounds)
                part = min(1.0, max(spent, held / rounds))
            reported = max(reported, part)  # a round that does not count takes it back
            yield reported
        if judge.end(waits):
            staying = _without_the_slow(staying, baseline, judge.counted)
        else:
            for contender in staying:
                contender.lost_us.append(contender.samples_us.pop(round_))
            yield from judge.a_moment(pause)
    return staying


def _part_of_all(taken_s: float, rounds: float, budget_s: float) -> float:
    """Fraction done of a comparison with final rounds, when ``rounds`` of 1 took ``taken_s``."""
    rounds_s = taken_s / rounds
    return taken_s / (rounds_s + max(budget_s - rounds_s, _LEAST_FINAL_ROUNDS * rounds_s))


def _is_right(contender: TimedContender, options: ComparisonOptions, baseline: float) -> bool:
    """Whether a contender runs, and errs by no more than it may, or than the baseline does."""
    allowed = options.tolerance if contender.tolerance is None else contender.tolerance
    return not contender.problem and (contender.max_rel_error or 0.0) <= max(allowed, baseline)


def _check(contender: TimedContender, check: Check, pause: YieldToRequests) -> None:
    """Run a contender, the first time to warm up, and note its errors or its problem."""
    if contender.problem:
        return
    try:
        outputs = contender.run(check.inputs, pause).outputs
        found_abs, found_rel = errors(outputs, check.reference)
        contender.max_abs_error = max(contender.max_abs_error or 0.0, found_abs)
        contender.max_rel_error = max(contender.max_rel_error or 0.0, found_rel)
        if check.samples:
            compared, agreed = same_top_class(outputs, check.reference, check.samples)
            contender.compared += compared
            contender.agreed += agreed
    except DeviceLost:
        raise
    except BraidError as error:
        contender.problem = str(error)


def errors(got: Tensors, reference: Tensors) -> tuple[float, float]:
    """Largest absolute error over all outputs, and largest relative to its output's maximum.

    A NaN or infinity must stand in the same place in both; elsewhere it counts as an infinite
    error.

    Raises:
        InvalidRequest: an output has another shape than in the reference.
    """
    max_abs = max_rel = 0.0
    for name, expected in reference.items():
        if got[name].shape != expected.shape:
            raise InvalidRequest(
                f"output {name!r} is {list(got[name].shape)}, not {list(expected.shape)}"
            )
        want, have = expected.double().flatten(), got[name].double().flatten()
        same = (want == have) | (want.isnan() & have.isnan())
        gap = torch.where(same, 0.0, (want - have).abs()).nan_to_num(nan=float("inf"))
        largest = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
        worst = gap.max().item() if gap.numel() else 0.0
        max_abs = max(max_abs, worst)
        max_rel = max(max_rel, worst / largest if largest else worst)
    return max_abs, max_rel


def same_top_class(got: Tensors, reference: Tensors, rows: int) -> tuple[int, int]:
    """Count rows of outputs that look like classes, and those with the reference's top class.

    An output of floats is one if it has rows of several numbers, whatever follows being 1. Of
    several such outputs each counts.
    """
    compared = agreed = 0
    for name, expected in reference.items():
        shape = list(expected.shape)
        while len(shape) > 2 and shape[-1] == 1:
            shape.pop()
        if not expected.is_floating_point() or len(shape) != 2 or shape[1] < 2:
            continue
        want = expected.reshape(shape)[:rows].argmax(1)
        have = got[name].reshape(shape)[:rows].argmax(1)
        compared, agreed = compared + len(want), agreed + int((want == have).sum())
    return compared, agreed


def _without_the_slow(
    staying: Sequence[TimedContender], baseline: TimedContender, rounds: int
) -> list[TimedContender]:
    limit = _LEAVES_ABOVE.get(rounds)
    if limit is None:
        return list(staying)
    best_us = min(median(contender.samples_us.values()) for contender in staying)
    return [
        contender
        for contender in staying
        if contender is baseline or min(contender.samples_us.values()) <= best_us * limit
    ]


def _doubt_by_spread(contenders: Sequence[TimedContender]) -> str:
    """Text that says whose runs scatter too much to tell anything; empty: nobody's do."""
    spreads = [
        reduce_samples(samples).spread for rival in contenders if (samples := _samples_us(rival))
    ]
    widest = max(spreads, default=0.0)
    if widest <= MOST_SPREAD:
        return ""
    return f"runs of one candidate scatter by {widest:.0%} of what they take"


def _samples_us(contender: TimedContender) -> list[float]:
    """Samples of the rounds that counted; of the final ones if there were any."""
    return list(chain.from_iterable(contender.final_turns_us)) or list(
        contender.samples_us.values()
    )


def _doubtful(contender: TimedContender, doubt: str) -> PlanMeasurement:
    """What was seen of a contender in a comparison that decides nothing."""
    counted = [*contender.samples_us.values(), *chain.from_iterable(contender.final_turns_us)]
    timing = reduce_samples(samples) if (samples := counted or contender.lost_us) else None
    everything = [*counted, *contender.lost_us]
    return PlanMeasurement(
        latency_us=timing.latency_us if timing else None,
        spread=timing.spread if timing else None,
        runs=len(samples),
        max_abs_error=contender.max_abs_error,
        max_rel_error=contender.max_rel_error,
        problem=contender.problem,
        activation_bytes=None if contender.problem else contender.activation_bytes(),
        top_agreement=contender.agreed / contender.compared if contender.compared else None,
        doubt=doubt,
        range_us=(min(everything), max(everything)) if everything else (),
    )


def _result(contender: TimedContender, baseline: TimedContender, stayed: bool) -> PlanMeasurement:
    turns_us = [median(turn) for turn in contender.final_turns_us]
    if turns_us:
        samples = list(chain.from_iterable(contender.final_turns_us))
        usual_us = [median(turn) for turn in baseline.final_turns_us[: len(turns_us)]]
    else:
        samples = turns_us = list(contender.samples_us.values())
        usual_us = [baseline.samples_us[round_] for round_ in contender.samples_us]
    timing = reduce_samples(samples) if samples else None
    ratios = [usual / turn for usual, turn in zip(usual_us, turns_us, strict=True)]
    return PlanMeasurement(
        latency_us=timing.latency_us if timing else None,
        spread=timing.spread if timing else None,
        runs=len(contender.samples_us) + sum(map(len, contender.final_turns_us)),
        ratios=tuple(ratios),
        max_abs_error=contender.max_abs_error,
        max_rel_error=contender.max_rel_error,
        problem=contender.problem,
        activation_bytes=None if contender.problem else contender.activation_bytes(),
        turns_us=tuple(turns_us) if stayed else (),
        top_agreement=contender.agreed / contender.compared if contender.compared else None,
    )
