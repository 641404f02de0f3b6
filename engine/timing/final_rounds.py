"""The last ones of a contest run as they would serve: several times in a row, one after the other.

    a turn:  │ pause │ A a a a a │ pause │ B b b b b │      the next one:  │ B b b b b │ A a a a a │

What a plan leaves in the caches helps its next run, and between two runs of a server there is none
of another plan. So each finalist runs in bursts, of which the first run does not count, and turns
take the opposite order each time. The numbers of one turn belong together: the machine may be
faster in the next one, but it is then for everybody (server/jobs/scheduling/sign_test.py compares
by turns).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic, sleep

from braid.engine.runtime.yielding import Pause
from braid.engine.timing.contenders import Entrant, sample_us
from braid.engine.timing.runs import Tensors


@dataclass(frozen=True, slots=True)
class FinalsOptions:
    """How long finalists are compared."""

    finalists: int = 4  # the baseline among them
    min_turns: int = 5
    max_turns: int = 15
    burst_s: float = 0.06  # about, of runs that count
    min_burst: int = 2
    max_burst: int = 30
    pause_s: float = 0.002  # longer than thread pools spin after a run


def finalists(
    staying: Sequence[Entrant], baseline: Entrant, options: FinalsOptions
) -> list[Entrant]:
    """The baseline, then the fastest of the others."""
    others = [entrant for entrant in staying if entrant is not baseline]
    others.sort(key=lambda entrant: median(entrant.samples_us.values()))
    return [baseline, *others[: options.finalists - 1]]


def hold_finals(
    entrants: Sequence[Entrant],
    inputs: Tensors,
    options: FinalsOptions,
    until: float,
    pause: Pause,
) -> Generator[float | None, None, None]:
    """Fill in the bursts of the finalists; yields the fraction done after each run.

    Args:
        entrants: of whom something is known from earlier rounds.
        inputs: as in their first run.
        options: how many turns.
        until: by the monotonic clock; a turn that began is finished.
        pause: lets inference go first.
    """
    fastest_us = min(median(entrant.samples_us.values()) for entrant in entrants)
    count = round(options.burst_s * 1e6 / fastest_us)
    count = max(options.min_burst, min(options.max_burst, count))
    began = monotonic()
    for turn in range(options.max_turns):
        if turn >= options.min_turns and monotonic() >= until:
            return
        for entrant in entrants[:: -1 if turn % 2 else 1]:
            sleep(options.pause_s)
            entrant.run(inputs, pause)
            yield None
            burst = []
            for _ in range(count):
                burst.append(sample_us(entrant, inputs, pause))
                yield None
            entrant.bursts_us.append(burst)
        spent = (monotonic() - began) / max(until - began, 1e-9)
        least = (turn + 1) / options.min_turns  # are held in any case
        yield min(1.0, max(min(spent, least), (turn + 1) / options.max_turns))
