"""Final rounds of a comparison: the last contenders run as they would serve, many times in a row.

    a turn:  │ A · a · a · a │ B · b · b · b │      the next one:  │ B · b · b · b │ A · a · a · a │

What a plan leaves in the caches helps its next run, and between two runs of a server there is none
of another plan. So a turn of a contender is several runs, of which the first does not count, with
pauses (·) as between the requests of one client, and turns take the opposite order each time. The
numbers of one turn belong together: the machine may be faster in the next one, but then for all
contenders (compiler/sign_test.py compares by turns).

A contender leaves once no further turn can let it serve: it was not faster than the baseline in too
many turns, or another one was faster in each of ``CLEAR_TURNS``. The turns end when nothing is left
to be decided, or too many of them do not count (``counted_rounds``).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic

from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.contenders import PAUSE_S, TimedContender, sample_of
from braid.engine.timing.counted_rounds import CountedRounds
from braid.engine.timing.runs import Tensors

CLEAR_TURNS = 7
"""Turns, all of them won, after which one of two is faster: 1.6 % of draws look like that."""

CLEAR_GAIN = 0.005
"""Median gain, relative, without which two are a draw however many turns one of them has won."""

MOST_LOST = 3
"""Turns of 15 that one may lose of which the sign test says that it is faster; of fewer, less."""


@dataclass(frozen=True, slots=True)
class FinalRoundsOptions:
    """Number of contenders, turns and runs in the final rounds."""

    contenders: int = 4  # the baseline among them
    min_turns: int = 5
    max_turns: int = 15
    turn_s: float = 0.06  # of one contender's turn, about, without its first run
    min_runs: int = 2
    max_runs: int = 30
    most_turn_s: float = 0.3  # after which no further run begins where samples are interrupted
    pause_s: float = PAUSE_S


def last_contenders(
    staying: Sequence[TimedContender], baseline: TimedContender, options: FinalRoundsOptions
) -> list[TimedContender]:
    """The baseline, then the fastest of the others."""
    others = [contender for contender in staying if contender is not baseline]
    others.sort(key=lambda contender: median(contender.samples_us.values()))
    return [baseline, *others[: options.contenders - 1]]


def run_final_rounds(
    contenders: Sequence[TimedContender],
    inputs: Tensors,
    options: FinalRoundsOptions,
    until: float,
    counted: CountedRounds,
    pause: YieldToRequests,
) -> Generator[float | None, None, None]:
    """Fill in ``final_turns_us`` of the contenders; yields the fraction done after each run.

    Args:
        contenders: measured in earlier rounds.
        inputs: as in their first run.
        options: how many turns.
        until: seconds of the monotonic clock; a turn that began is finished.
        counted: judges the turns.
        pause: lets inference go first.

    A contender that left has fewer turns than the first one, which stays to the end.
    """
    contenders = list(contenders)
    fastest_us = min(median(contender.samples_us.values()) for contender in contenders)
    count = round(options.turn_s / (fastest_us * 1e-6 + options.pause_s))
    count = max(options.min_runs, min(options.max_runs, count))
    began, turn = monotonic(), 0
    while turn < options.max_turns and not counted.has_given_up:
        if turn >= options.min_turns and monotonic() >= until:
            return
        counted.begin()
        waits: list[list[float]] = []
        for contender in contenders[:: -1 if turn % 2 else 1]:
            waits += [(yield from _run_turn(contender, inputs, count, options, pause))]
        if not counted.end(waits):
            for contender in contenders:
                contender.lost_us += contender.final_turns_us.pop()
            yield from counted.a_moment(pause)
            continue
        turn += 1
        if turn >= options.min_turns:
            contenders = _undecided(contenders)
        if not contenders:
            yield 1.0
            return
        spent = (monotonic() - began) / max(until - began, 1e-9)
        least = turn / options.min_turns  # are held in any case
        yield min(1.0, max(min(spent, least), turn / options.max_turns))


def _run_turn(
    contender: TimedContender,
    inputs: Tensors,
    count: int,
    options: FinalRoundsOptions,
    pause: YieldToRequests,
) -> Generator[None, None, list[float]]:
    """Run a contender ``count`` times, or fewer if that takes too long; yields after each run.

    Returns what threads waited in the samples, relative to them.
    """
    contender.run(inputs, pause)
    yield None
    turn_us: list[float] = []
    waits: list[float] = []
    until = monotonic() + options.most_turn_s
    while len(turn_us) < count:
        if len(turn_us) >= options.min_runs and monotonic() >= until:
            break
        sample = sample_of(contender, inputs, pause, options.pause_s)
        turn_us.append(sample.us)
        waits.append(sample.waited)
        yield None
    contender.final_turns_us.append(turn_us)
    return waits


def still_there(contenders: Sequence[TimedContender]) -> list[TimedContender]:
    """The contenders that have had as many final turns as the first one, which stays to the end."""
    turns = len(contenders[0].final_turns_us)
    return [contender for contender in contenders if len(contender.final_turns_us) == turns]


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
    turns = zip(one.final_turns_us, other.final_turns_us, strict=True)
    return [median(theirs) / median(ours) for ours, theirs in turns]


def _turns_lost(one: TimedContender, other: TimedContender) -> int:
    return sum(ratio <= 1.0 for ratio in _ratios(one, other))


def _is_clear(one: TimedContender, other: TimedContender) -> bool:
    """Whether ``one`` is the faster without doubt."""
    ratios = _ratios(one, other)
    enough = len(ratios) >= CLEAR_TURNS and median(ratios) > 1.0 + CLEAR_GAIN
    return enough and min(ratios) > 1.0
