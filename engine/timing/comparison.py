"""Whole models against each other: are the numbers right, which one is fastest?

    each once: errors ──wrong or failing ones leave──> rounds, everybody in turns
         └─ after 2, 4, 8 rounds the clearly slower ones leave ─> finals of those that are left

Everybody runs once a round, in an order that rotates, so that drift hits all alike; a pause after
each run lets thread pools go to sleep. A quick one runs twice and the second run counts: when it
serves, it finds its weights in the caches, not those of a dozen others. Runs that take so long that
this does not show need no finals: rounds go on until time is over. Entrant 0 is the baseline
and always stays. The numerical reference is none of them: it is the plain interpreter over registry
kernels in fp32.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from time import monotonic, sleep

from braid.core.errors import BraidError, DeviceLost, WorkerFault
from braid.engine.runtime.yielding import Pause, no_pause
from braid.engine.timing.agreement import errors
from braid.engine.timing.contenders import Entrant, sample_us
from braid.engine.timing.final_rounds import FinalsOptions, finalists, hold_finals
from braid.engine.timing.runs import Tensors
from braid.engine.timing.samples import reduce_samples

_LEAVES_ABOVE = {2: 1.25, 4: 1.08, 8: 1.03, 16: 1.015}
"""After this many rounds an entrant leaves whose *best* run is this far above the best median."""

_LEAST_FINALS = 0.2
"""How long finals take at least, as a fraction of what the rounds before them took: a guess."""


@dataclass(frozen=True, slots=True)
class ContestOptions:
    """How long entrants are compared."""

    tolerance: float  # of outputs, relative to the largest element; who errs more only runs once
    min_rounds: int = 5
    max_rounds: int = 40  # of those that are not quick
    heats: int = 8  # rounds before the finals of quick ones
    budget_s: float = 10.0  # a round that began is finished, and min_rounds are always held
    pause_s: float = 0.0005
    finals: FinalsOptions = field(default_factory=FinalsOptions)


@dataclass(frozen=True, slots=True)
class Result:
    """What an entrant showed. ``ratios`` are of the baseline over it, one a turn of both."""

    latency_us: float | None
    spread: float | None
    runs: int
    ratios: tuple[float, ...]
    max_abs_error: float | None
    max_rel_error: float | None
    problem: str
    activation_bytes: int | None
    turns_us: tuple[float, ...]  # of those that stayed to the end, one number a turn


def hold_contest(
    entrants: Sequence[Entrant],
    inputs: Tensors,
    reference: Tensors,
    options: ContestOptions,
    pause: Pause = no_pause,
) -> Generator[float | None, None, list[Result]]:
    """Measure entrants, the first being the baseline; yields the fraction done after each run.

    Raises:
        WorkerFault: the baseline does not run.
    """
    for entrant in entrants:
        _check(entrant, inputs, reference, pause)
        yield 0.0
    if entrants[0].problem:
        raise WorkerFault(f"the baseline does not run: {entrants[0].problem}")
    staying = [
        entrant
        for entrant in entrants
        if entrant is entrants[0]
        or (not entrant.problem and (entrant.max_rel_error or 0.0) <= options.tolerance)
    ]
    began = monotonic()
    staying = yield from _hold_rounds(staying, inputs, options, pause)
    if len(staying) > 1 and staying[0].is_quick:
        staying = finalists(staying, entrants[0], options.finals)
        rounds = _part_of_all(monotonic() - began, 1.0, options.budget_s)
        until = began + options.budget_s
        for fraction in hold_finals(staying, inputs, options.finals, until, pause):
            yield fraction and rounds + (1 - rounds) * fraction
    return [_result(entrant, entrants[0], entrant in staying) for entrant in entrants]


def _hold_rounds(
    staying: Sequence[Entrant], inputs: Tensors, options: ContestOptions, pause: Pause
) -> Generator[float | None, None, list[Entrant]]:
    """Rounds of everybody, until little is left to tell from them; returns who stays."""
    baseline, staying = staying[0], list(staying)
    began = monotonic()
    for round_ in range(options.max_rounds):
        rounds = options.heats if baseline.is_quick else options.max_rounds
        is_enough = monotonic() - began >= options.budget_s or len(staying) == 1
        if round_ >= rounds or (round_ >= options.min_rounds and is_enough):
            break
        first = round_ % len(staying)
        for place, entrant in enumerate([*staying[first:], *staying[:first]], start=1):
            if entrant.is_quick:
                entrant.run(inputs, pause)
                yield None
            entrant.samples_us[round_] = sample_us(entrant, inputs, pause)
            sleep(options.pause_s)
            held, taken_s = round_ + place / len(staying), monotonic() - began
            if baseline.is_quick:
                yield _part_of_all(taken_s, held / rounds, options.budget_s)
            else:  # min_rounds are held in any case
                spent = min(taken_s / options.budget_s, held / options.min_rounds)
                yield min(1.0, max(spent, held / rounds))
        staying = _without_the_slow(staying, baseline, round_ + 1)
    return staying


def _part_of_all(taken_s: float, rounds: float, budget_s: float) -> float:
    """How much of a contest with finals is over, when this part of its rounds took so long."""
    rounds_s = taken_s / rounds
    return taken_s / (rounds_s + max(budget_s - rounds_s, _LEAST_FINALS * rounds_s))


def _check(entrant: Entrant, inputs: Tensors, reference: Tensors, pause: Pause) -> None:
    """The first run, which also warms up; of those that are known not to run there is none."""
    if entrant.problem:
        return
    try:
        outputs = entrant.run(inputs, pause).outputs
        entrant.max_abs_error, entrant.max_rel_error = errors(outputs, reference)
    except DeviceLost:
        raise
    except BraidError as error:
        entrant.problem = str(error)


def _without_the_slow(staying: Sequence[Entrant], baseline: Entrant, rounds: int) -> list[Entrant]:
    limit = _LEAVES_ABOVE.get(rounds)
    if limit is None:
        return list(staying)
    best_us = min(median(entrant.samples_us.values()) for entrant in staying)
    return [
        entrant
        for entrant in staying
        if entrant is baseline or min(entrant.samples_us.values()) <= best_us * limit
    ]


def _result(entrant: Entrant, baseline: Entrant, stayed: bool) -> Result:
    turns_us = [median(burst) for burst in entrant.bursts_us]
    if turns_us:
        samples = list(chain.from_iterable(entrant.bursts_us))
        usual_us = [median(burst) for burst in baseline.bursts_us]
    else:
        samples = turns_us = list(entrant.samples_us.values())
        usual_us = [baseline.samples_us[round_] for round_ in entrant.samples_us]
    timing = reduce_samples(samples) if samples else None
    ratios = [usual / turn for usual, turn in zip(usual_us, turns_us, strict=True)]
    return Result(
        latency_us=timing.latency_us if timing else None,
        spread=timing.spread if timing else None,
        runs=len(entrant.samples_us) + sum(map(len, entrant.bursts_us)),
        ratios=tuple(ratios),
        max_abs_error=entrant.max_abs_error,
        max_rel_error=entrant.max_rel_error,
        problem=entrant.problem,
        activation_bytes=None if entrant.problem else entrant.activation_bytes(),
        turns_us=tuple(turns_us) if stayed else (),
    )
