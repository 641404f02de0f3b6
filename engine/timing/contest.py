"""Whole models against each other: are the numbers right, which one is fastest?

    each once: errors ──wrong or failing ones leave──> rounds, everybody in turns
         └─ after 2, 4, 8 rounds the clearly slower ones leave ─> until time or rounds are over

Everybody runs once a round, in an order that rotates, so that drift hits all alike; a pause after
each run lets thread pools go to sleep. A quick one runs twice and the second run counts: when it
serves, it finds its weights in the caches, not those of a dozen others. Entrant 0 is the baseline
and always stays. The numerical reference is none of them: it is the plain interpreter over registry
kernels in fp32.

Requests go first even in the middle of a run (docs/decisions/0021-requests-interrupt.md). Their
time does not count; short runs, in which it shows that the caches were lost, are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic, sleep

from core.errors import BraidError, DeviceLost, WorkerFault
from engine.pause import Pause, no_pause
from engine.timing.agreement import errors
from engine.timing.runs import Run, Tensors
from engine.timing.samples import reduce_samples

_LEAVES_ABOVE = {2: 1.25, 4: 1.08, 8: 1.03, 16: 1.015}
"""After this many rounds an entrant leaves whose *best* run is this far above the best median."""


_QUICK_US = 150_000.0

_SHORT_US, _ATTEMPTS = 50_000.0, 3
"""How often a run of less than this is tried, for one without interruptions."""


@dataclass(frozen=True, slots=True)
class ContestOptions:
    """How long entrants are compared."""

    tolerance: float  # of outputs, relative to the largest element; who errs more only runs once
    min_rounds: int = 5
    max_rounds: int = 40
    budget_s: float = 10.0  # a round that began is finished, and min_rounds are always held
    pause_s: float = 0.0005


@dataclass(slots=True)
class Entrant:
    """One way to run the model, and what was seen of it."""

    run: Run
    timed_us: Callable[[Tensors], float] | None = None  # runs, and tells the device's own time
    activation_bytes: Callable[[], int | None] = lambda: None  # asked when it has run
    samples_us: dict[int, float] = field(default_factory=dict)  # by round
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    problem: str = ""  # why it could not run


@dataclass(frozen=True, slots=True)
class Result:
    """What an entrant showed. ``speedup`` is the baseline over it, in the rounds of both."""

    latency_us: float | None
    spread: float | None
    runs: int
    speedup: float | None
    max_abs_error: float | None
    max_rel_error: float | None
    problem: str
    activation_bytes: int | None


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
    for round_ in range(options.max_rounds):
        spent = (monotonic() - began) / options.budget_s
        if round_ >= options.min_rounds and (spent >= 1 or len(staying) == 1):
            break
        first = round_ % len(staying)
        for entrant in [*staying[first:], *staying[:first]]:
            if _is_quick(entrant):
                entrant.run(inputs, pause)
                yield None
            entrant.samples_us[round_] = _sample_us(entrant, inputs, pause)
            sleep(options.pause_s)
            yield min(1.0, max(spent, round_ / options.max_rounds))
        staying = _without_the_slow(staying, entrants[0], round_ + 1)
    return [_result(entrant, entrants[0]) for entrant in entrants]


def _sample_us(entrant: Entrant, inputs: Tensors, pause: Pause) -> float:
    """One run; ``inputs`` are those of its first one."""
    if entrant.timed_us is not None:
        return entrant.timed_us(inputs)
    for _ in range(_ATTEMPTS):
        ran = entrant.run(inputs, pause)
        if not ran.was_interrupted or ran.latency_us > _SHORT_US:
            break
    return ran.latency_us


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


def _is_quick(entrant: Entrant) -> bool:
    """Whether what others left in the caches shows in a run: then one run first takes them back."""
    return min(entrant.samples_us.values(), default=0.0) < _QUICK_US


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


def _result(entrant: Entrant, baseline: Entrant) -> Result:
    samples = entrant.samples_us
    timing = reduce_samples(list(samples.values())) if samples else None
    ratios = [baseline.samples_us[round_] / sample for round_, sample in samples.items()]
    return Result(
        latency_us=timing.latency_us if timing else None,
        spread=timing.spread if timing else None,
        runs=len(samples),
        speedup=median(ratios) if ratios else None,
        max_abs_error=entrant.max_abs_error,
        max_rel_error=entrant.max_rel_error,
        problem=entrant.problem,
        activation_bytes=None if entrant.problem else entrant.activation_bytes(),
    )
