"""Rounds of a comparison: all contenders run as they would serve, one turn each.

    a round:  │ A · a · a · a │ B · b · b · b │ C · c · c · c │      the next one begins with B

Requests that come one by one find what the plan's last run left in the caches, and threads asleep.
So in a turn a contender runs several times, with pauses (·) longer than thread pools spin, and the
first run does not count. The numbers of one round belong together: the machine may be faster in the
next one, but then for all contenders (core/sign_test.py compares by turns). Who takes long runs
once a turn: there the caches do not show.

The first rounds are as the last ones, so that all figures stand in one table. A contender leaves

- after two rounds, once its interval lies above that of the fastest: who is hopeless;
- after ``min_rounds``, once no further turn can let it serve: it was not faster than the baseline
  in too many turns, or another one was faster in each of ``CLEAR_TURNS``.

A round in which the comparison was left, as the device was in another state, is held again. Rounds
end when nothing is left to be decided, or too many do not count (counted_rounds.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic

from braid.core.sign_test import median_interval
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.contenders import PAUSE_S, QUICK_US, TimedContender, sample_of
from braid.engine.timing.counted_rounds import CountedRounds
from braid.engine.timing.runs import Tensors

CLEAR_TURNS = 7
"""Turns, all of them won, after which one of two is faster: 1.6 % of draws look like that."""

CLEAR_GAIN = 0.005
"""Median gain, relative, without which two are a draw however many turns one of them has won."""

MOST_LOST = 3
"""Turns of 15 that one may lose of which the sign test says that it is faster; of fewer, less."""

LEAST_ROUNDS = 2
"""Rounds after which a contender may leave: in one alone the machine may have been slow."""

STRETCH = 1.12
"""Factor by which the range of fewer turns than an interval takes is stretched on either side: who
leaves then took 1.25 times as long in the best turn as the fastest one in its worst."""


class _WasLeftError(Exception):
    """The comparison was left in the midst of a round."""

    def __init__(self, away_s: float) -> None:
        super().__init__()
        self.away_s = away_s


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Number of rounds, and of runs in a turn."""

    min_rounds: int = 5
    max_rounds: int = 15
    turn_s: float = 0.06  # of one contender's turn, about, without its first run ...
    round_s: float = 0.12  # ... and of the turns of all, if those would take longer
    min_runs: int = 1
    max_runs: int = 30
    most_turn_s: float = 0.3  # after which no further run begins where samples are interrupted
    pause_s: float = PAUSE_S

    def runs(self, latency_us: float, contenders: int, round_: int) -> int:
        """Runs in a turn that count, if one takes so long and so many contenders take part.

        They grow until ``min_rounds`` are held: it takes few to tell who is hopeless.
        """
        if latency_us >= QUICK_US:
            return 1
        part = min(1.0, (round_ + 1) / self.min_rounds)
        turn_s = part * min(self.turn_s, self.round_s / contenders)
        count = round(turn_s / (latency_us * 1e-6 + self.pause_s))
        return max(self.min_runs, min(self.max_runs, count))


def run_rounds(
    contenders: Sequence[TimedContender],
    inputs: Tensors,
    options: RoundOptions,
    budget_s: float,
    counted: CountedRounds,
    pause: YieldToRequests,
) -> Generator[float | None, float | None, list[TimedContender]]:
    """Fill in ``turns_us`` of the contenders; yields the fraction done after each turn.

    Args:
        contenders: the baseline first, which stays to the end.
        inputs: as in their first run.
        options: how many rounds.
        budget_s: seconds after which no further round begins, but that ``min_rounds`` are held.
        counted: judges the rounds.
        pause: lets inference go first.

    Returns:
        The contenders that stayed to the end: all that have as many turns as the baseline.
    """
    undecided = staying = list(contenders)
    began, told = monotonic(), 0.0
    while counted.counted < options.max_rounds and undecided and not counted.has_given_up:
        held = counted.counted
        is_enough = monotonic() - began >= budget_s or len(staying) == 1
        if held >= options.min_rounds and is_enough:
            break
        counted.begin()
        waits: list[list[float]] = []
        runs = 0  # in each turn of this round
        try:
            for place, contender in enumerate(_in_turns(staying, held), start=1):
                turn = _run_turn(contender, inputs, runs, staying, options, pause)
                waits.append((yield from turn))
                runs = runs or len(contender.turns_us[-1])
                done = held + place / len(staying)
                spent = min((monotonic() - began) / budget_s, done / options.min_rounds)
                told = max(told, min(1.0, max(spent, done / options.max_rounds)))
                _check_stayed((yield told))  # a round that does not count does not take it back
        except _WasLeftError as error:
            began += error.away_s
            for contender in staying:
                del contender.turns_us[held:]
            continue
        if not counted.end(waits):
            for contender in staying:
                contender.lost_us += contender.turns_us.pop()
            yield from counted.a_moment(pause)
            continue
        if counted.counted >= LEAST_ROUNDS:
            staying = _without_the_hopeless(staying)
        if counted.counted >= options.min_rounds:
            undecided = _undecided(staying)
            staying = undecided or staying
    yield 1.0
    turns = len(contenders[0].turns_us)
    return [contender for contender in contenders if len(contender.turns_us) == turns]


def _check_stayed(away_s: float | None) -> None:
    if away_s is not None:
        raise _WasLeftError(away_s)


def _in_turns(contenders: Sequence[TimedContender], round_: int) -> list[TimedContender]:
    """Order of a round: another one begins each time, and neighbours change sides."""
    first = round_ % len(contenders)
    order = [*contenders[first:], *contenders[:first]]
    return order[:1] + order[:0:-1] if round_ % 2 else order


def _run_turn(
    contender: TimedContender,
    inputs: Tensors,
    runs: int,
    staying: Sequence[TimedContender],
    options: RoundOptions,
    pause: YieldToRequests,
) -> Generator[None, float | None, list[float]]:
    """Run a contender ``runs`` times, or fewer if that takes too long; yields after each run.

    Raises _WasLeftError if it was left meanwhile, and nothing is kept of the turn.
    Returns what threads waited in the samples, relative to them. With ``runs`` of 0 the number
    follows from the latency of the fastest, or where none is known, of the first run.
    """
    first_us = 0.0
    if contender.is_quick:
        first_us = contender.run(inputs, pause).latency_us
        _check_stayed((yield None))
    if not staying[0].is_quick:
        runs = 1
    elif not runs:
        known_us = [rival.medians_us[-1] for rival in staying if rival.turns_us]
        held = len(contender.turns_us)
        runs = options.runs(min(known_us, default=first_us), len(staying), held)
    turn_us: list[float] = []
    waits: list[float] = []
    until = monotonic() + options.most_turn_s
    while len(turn_us) < runs:
        if len(turn_us) >= options.min_runs and monotonic() >= until:
            break
        sample = sample_of(contender, inputs, pause, options.pause_s)
        turn_us.append(sample.us)
        waits.append(sample.waited)
        _check_stayed((yield None))
    contender.turns_us.append(turn_us)
    return waits


def _without_the_hopeless(contenders: Sequence[TimedContender]) -> list[TimedContender]:
    """The baseline, and those whose interval meets that of the fastest one, or nearly does."""
    fastest = min(contenders, key=lambda contender: median(contender.medians_us))
    most_us = interval_us(fastest)[1] * (1.0 + CLEAR_GAIN)
    baseline, *others = contenders
    return [baseline, *(rival for rival in others if interval_us(rival)[0] <= most_us)]


def interval_us(contender: TimedContender) -> tuple[float, float]:
    """Interval of a contender's latency, by its turns.

    Of fewer than five turns no interval is sure enough; then it is their range, stretched.
    """
    turns_us = contender.medians_us
    return median_interval(turns_us) or (min(turns_us) / STRETCH, max(turns_us) * STRETCH)


def _undecided(contenders: Sequence[TimedContender]) -> list[TimedContender]:
    """The baseline and those that may yet serve; none if no turn would change what serves."""
    baseline, *others = contenders
    hopeful = [one for one in others if _turns_lost(one, baseline) <= MOST_LOST]
    left = [one for one in hopeful if not any(_is_clear(other, one) for other in hopeful)]
    if not left or (len(left) == 1 and _is_clear(left[0], baseline)):
        return []
    return [baseline, *left]


def _ratios(one: TimedContender, other: TimedContender) -> list[float]:
    """Latency of ``other`` over that of ``one``, by turns."""
    turns = zip(one.medians_us, other.medians_us, strict=True)
    return [theirs_us / ours_us for ours_us, theirs_us in turns]


def _turns_lost(one: TimedContender, other: TimedContender) -> int:
    return sum(ratio <= 1.0 for ratio in _ratios(one, other))


def _is_clear(one: TimedContender, other: TimedContender) -> bool:
    """Whether ``one`` is the faster without doubt."""
    ratios = _ratios(one, other)
    enough = len(ratios) >= CLEAR_TURNS and median(ratios) > 1.0 + CLEAR_GAIN
    return enough and min(ratios) > 1.0
