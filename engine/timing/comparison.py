"""Comparison of whole models: errors and latency of each contender.

    each once: errors ──wrong or failing ones leave──> rounds, all contenders in turns
         └─ after 2, 4, 8 rounds the clearly slower ones leave ─> final rounds of those left

Each contender runs once a round, in an order that rotates, so that drift hits all alike; in a pause
before the run thread pools go to sleep. A quick one runs twice and the second run counts: when it
serves, it finds its weights in the caches, not those of a dozen others. Where runs take so long
that this does not show, there are no final rounds: rounds go on until the time is used up.
Contender 0 is the baseline and always stays. The numerical reference is none of the contenders: it
is the plain interpreter over registry kernels in fp32.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from time import monotonic

import torch

from braid.core.errors import BraidError, DeviceLost, WorkerFault
from braid.core.measurement import PlanMeasurement
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.timing.contenders import PAUSE_S, TimedContender, sample_us
from braid.engine.timing.final_rounds import FinalRoundsOptions, last_contenders, run_final_rounds
from braid.engine.timing.runs import Tensors
from braid.engine.timing.samples import reduce_samples

_LEAVES_ABOVE = {2: 1.25, 4: 1.08, 8: 1.03, 16: 1.015}
"""Rounds -> factor: a contender whose *best* run is this far above the best median leaves then."""

_LEAST_FINAL_ROUNDS = 0.2
"""Least time of the final rounds, as a fraction of the rounds before them: a guess."""


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Tolerance, rounds and time of a comparison."""

    tolerance: float  # of outputs, relative to the largest element; above it a contender runs once
    min_rounds: int = 5
    max_rounds: int = 40  # of contenders that are not quick
    quick_rounds: int = 8  # rounds of quick contenders, before the final rounds
    budget_s: float = 10.0  # a round that began is finished, and min_rounds are always held
    pause_s: float = PAUSE_S
    final_rounds: FinalRoundsOptions = field(default_factory=FinalRoundsOptions)


def compare(
    contenders: Sequence[TimedContender],
    inputs: Tensors,
    reference: Tensors,
    options: ComparisonOptions,
    pause: YieldToRequests = no_pause,
) -> Generator[float | None, None, list[PlanMeasurement]]:
    """Measure contenders, the first being the baseline; yields the fraction done after each run.

    Raises:
        WorkerFault: the baseline does not run.
    """
    for contender in contenders:
        contender.sampler = contenders[0].sampler
        _check(contender, inputs, reference, pause)
        yield 0.0
    if contenders[0].problem:
        raise WorkerFault(f"the baseline does not run: {contenders[0].problem}")
    staying = [
        contender
        for contender in contenders
        if contender is contenders[0]
        or (not contender.problem and (contender.max_rel_error or 0.0) <= options.tolerance)
    ]
    began = monotonic()
    staying = yield from _run_rounds(staying, inputs, options, pause)
    if len(staying) > 1 and staying[0].is_quick:
        staying = last_contenders(staying, contenders[0], options.final_rounds)
        rounds = _part_of_all(monotonic() - began, 1.0, options.budget_s)
        until = began + options.budget_s
        for fraction in run_final_rounds(staying, inputs, options.final_rounds, until, pause):
            yield fraction and rounds + (1 - rounds) * fraction
        turns = len(staying[0].final_turns_us)
        staying = [contender for contender in staying if len(contender.final_turns_us) == turns]
    return [_result(contender, contenders[0], contender in staying) for contender in contenders]


def _run_rounds(
    staying: Sequence[TimedContender],
    inputs: Tensors,
    options: ComparisonOptions,
    pause: YieldToRequests,
) -> Generator[float | None, None, list[TimedContender]]:
    """Run rounds until more of them would tell little; returns the contenders that stay."""
    baseline, staying = staying[0], list(staying)
    began = monotonic()
    for round_ in range(options.max_rounds):
        rounds = options.quick_rounds if baseline.is_quick else options.max_rounds
        is_enough = monotonic() - began >= options.budget_s or len(staying) == 1
        if round_ >= rounds or (round_ >= options.min_rounds and is_enough):
            break
        first = round_ % len(staying)
        for place, contender in enumerate([*staying[first:], *staying[:first]], start=1):
            if contender.is_quick:
                contender.run(inputs, pause)
                yield None
            contender.samples_us[round_] = sample_us(contender, inputs, pause, options.pause_s)
            held, taken_s = round_ + place / len(staying), monotonic() - began
            if baseline.is_quick:
                yield _part_of_all(taken_s, held / rounds, options.budget_s)
            else:  # min_rounds are held in any case
                spent = min(taken_s / options.budget_s, held / options.min_rounds)
                yield min(1.0, max(spent, held / rounds))
        staying = _without_the_slow(staying, baseline, round_ + 1)
    return staying


def _part_of_all(taken_s: float, rounds: float, budget_s: float) -> float:
    """Fraction done of a comparison with final rounds, when ``rounds`` of 1 took ``taken_s``."""
    rounds_s = taken_s / rounds
    return taken_s / (rounds_s + max(budget_s - rounds_s, _LEAST_FINAL_ROUNDS * rounds_s))


def _check(
    contender: TimedContender, inputs: Tensors, reference: Tensors, pause: YieldToRequests
) -> None:
    """Run a contender for the first time, which warms up, and note its errors or its problem."""
    if contender.problem:
        return
    try:
        outputs = contender.run(inputs, pause).outputs
        contender.max_abs_error, contender.max_rel_error = errors(outputs, reference)
    except DeviceLost:
        raise
    except BraidError as error:
        contender.problem = str(error)


def errors(got: Tensors, reference: Tensors) -> tuple[float, float]:
    """Largest absolute error over all outputs, and largest relative to its output's maximum.

    A NaN or infinity must stand in the same place in both; elsewhere it counts as an infinite
    error.
    """
    max_abs = max_rel = 0.0
    for name, expected in reference.items():
        want, have = expected.double().flatten(), got[name].double().flatten()
        same = (want == have) | (want.isnan() & have.isnan())
        gap = torch.where(same, 0.0, (want - have).abs()).nan_to_num(nan=float("inf"))
        largest = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
        worst = gap.max().item() if gap.numel() else 0.0
        max_abs = max(max_abs, worst)
        max_rel = max(max_rel, worst / largest if largest else worst)
    return max_abs, max_rel


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
    )
