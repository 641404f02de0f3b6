"""Rounds of a comparison: all contenders run as they would serve, one turn each.

    a round:  │ A · a · a · a │ B · b · b · b │ C · c · c · c │      the next one begins with B

Requests that come one by one find what the plan's last run left in the caches, and threads asleep.
So in a turn a contender runs several times, with pauses (·) longer than thread pools spin, and the
first run does not count. The numbers of one round belong together: the machine may be faster in the
next one, but then for all contenders (core/sign_test.py compares by turns). Who takes long runs
once a turn: there the caches do not show.

The rounds screen, and service decides (scheduler/contest.py): they are few and short, and nobody
waits for a quiet machine. A contender leaves

- after two rounds, once it took ``FIRST_TURNS_RATIO`` times as long as the fastest in each of them,
  or is none of the ``most_stay`` fastest: of up to 14, the four best in the end were among the
  five fastest of two rounds on seven networks of eight, and among the eight fastest on the other
  (timm, 2-core Intel Xeon, 2026-11-30).

The baseline stays: speeds are told beside it. So does the fastest other runtime: it may be first
beside busy cores.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic

from braid.core.margins import FIRST_TURNS_RATIO
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.contenders import PAUSE_S, QUICK_US, TimedContender, sample_of

LEAST_ROUNDS = 2  # before a contender may leave: in one the machine may have been slow


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Number of rounds, and of runs in a turn."""

    rounds: int = 5
    turn_s: float = 0.06  # of one contender's turn, about, without its first run ...
    round_s: float = 0.12  # ... and of the turns of all, if those would take longer
    min_runs: int = 1
    max_runs: int = 30
    most_turn_s: float = 0.3  # after which no further run begins where samples are interrupted
    pause_s: float = PAUSE_S
    most_stay: int = 6  # after the first rounds, beside the baseline: twice as many as serve

    def runs(self, latency_us: float, contenders: int, round_: int) -> int:
        """Fewer in the first rounds: it takes few to tell who is hopeless."""
        if latency_us >= QUICK_US:
            return 1
        part = min(1.0, (round_ + 1) / self.rounds)
        turn_s = part * min(self.turn_s, self.round_s / contenders)
        count = round(turn_s / (latency_us * 1e-6 + self.pause_s))
        return max(self.min_runs, min(self.max_runs, count))


def run_rounds(
    contenders: Sequence[TimedContender],
    inputs: Arrays,
    options: RoundOptions,
    pause: YieldToRequests,
) -> Generator[float, None, list[TimedContender]]:
    """Fill in ``turns_us``; yields the fraction done after each run, returns who stayed to the end.

    Those have as many turns as the baseline, which comes first.
    """
    staying = list(contenders)
    for held in range(options.rounds):
        runs = 0  # in each turn of this round
        for place, contender in enumerate(_in_turns(staying, held)):
            for _ in _run_turn(contender, inputs, runs, staying, options, pause):
                yield (held + place / len(staying)) / options.rounds
            runs = runs or len(contender.turns_us[-1])
        if held + 1 == LEAST_ROUNDS:
            staying = _without_the_slow(staying, options.most_stay)
    yield 1.0
    return staying


def _in_turns(contenders: Sequence[TimedContender], round_: int) -> list[TimedContender]:
    """Order of a round: another one begins each time, and neighbours change sides."""
    first = round_ % len(contenders)
    order = [*contenders[first:], *contenders[:first]]
    return order[:1] + order[:0:-1] if round_ % 2 else order


def _run_turn(
    contender: TimedContender,
    inputs: Arrays,
    runs: int,
    staying: Sequence[TimedContender],
    options: RoundOptions,
    pause: YieldToRequests,
) -> Generator[None, None, None]:
    """Run a contender ``runs`` times, or fewer if that takes too long; yields after each run.

    With ``runs`` of 0 the fastest's latency decides, or if there is none, the first run's.
    """
    first_us = 0.0
    if contender.is_quick:
        first_us = contender.run(inputs, pause).latency_us
        yield
    if not staying[0].is_quick:
        runs = 1
    elif not runs:
        known_us = [rival.medians_us[-1] for rival in staying if rival.turns_us]
        held = len(contender.turns_us)
        runs = options.runs(min(known_us, default=first_us), len(staying), held)
    turn_us: list[float] = []
    until = monotonic() + options.most_turn_s
    while len(turn_us) < runs:
        if len(turn_us) >= options.min_runs and monotonic() >= until:
            break
        turn_us.append(sample_of(contender, inputs, pause, options.pause_s))
        yield
    contender.turns_us.append(turn_us)


def _without_the_slow(contenders: Sequence[TimedContender], most_stay: int) -> list[TimedContender]:
    """The baseline, the fastest others that were not much slower in each round, and a runtime."""
    by_speed = sorted(contenders, key=lambda contender: median(contender.medians_us))
    near = [rival for rival in by_speed if _least_ratio(by_speed[0], rival) <= FIRST_TURNS_RATIO]
    runtimes = [rival for rival in by_speed if rival.is_runtime]
    staying = {id(rival) for rival in (contenders[0], *near[:most_stay], *runtimes[:1])}
    return [contender for contender in contenders if id(contender) in staying]


def _least_ratio(one: TimedContender, other: TimedContender) -> float:
    turns = zip(one.medians_us, other.medians_us, strict=True)
    return min(theirs_us / ours_us for ours_us, theirs_us in turns)
