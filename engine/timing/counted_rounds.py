"""Which rounds of a comparison count: those in which what is measured had its cores.

    round ──waits of its threads, by sample───┐
          ──or what other processes took──────┼──> counts
          ──and what the host took of cores───┴──> does not: forgotten, held again a moment later
                                                    └─ ``patience_s`` went by so: no verdict

What is judged is each measurement, not how busy the machine is: a round between two bursts of other
work counts. But what works there between the rounds leaves its data in the caches, and memory and
clocks are shared: plans took 1.2 to 2.5 times as long in rounds that counted, where most did not.
So a comparison without enough rounds that count, or with too many that do not, is in doubt, and
decides nothing; so is one whose runs scatter by more than they take
(docs/decisions/0055-provisional-schedules.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from statistics import median
from time import monotonic, process_time
from typing import NamedTuple

from braid.core.cpu_times import CpuTimes, read_cpu_times
from braid.engine.runtime.lost_cores import cores_of_threads
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.contenders import idle
from braid.engine.timing.samples import MOST_WAITED

MOST_TAKEN = MOST_WAITED
"""Part of the cores' time that other processes may have taken in a round that counts, where the
threads of what is measured use all of it, and so wait for each other, too."""

LEAST_TAKEN = 0.08
"""Part of one core's time that other processes must have taken in a round if threads waited for
them. Where they took less, the threads of what is measured waited for each other, as in service."""

MOST_STOLEN = 0.2
"""Part of the cores' time that the host of a virtual machine may have taken in a round that counts.
Turns are compared in pairs, which bears a tenth."""

WINDOW_S = 0.5
"""Seconds, at least, over which that is looked at: the kernel counts it in hundredths."""

MOST_SPREAD = 1.0
"""Spread of a candidate's runs above which they tell nothing: (75th - 25th percentile) / median.
On an idle machine it is 0.01 to 0.2; a machine whose two cores move apart in the midst of it, and
back, at most this."""

LEAST_LOST = 3
"""Rounds that are lost, at least, if a comparison is in doubt for that."""

MOST_LOST = 0.25
"""Part of the rounds that may be lost."""


class _Look(NamedTuple):
    """What was known at one moment."""

    at_s: float
    cores: CpuTimes
    own_s: float  # CPU time of this process, of all its threads


class CountedRounds:
    """Judges the rounds of one comparison."""

    def __init__(
        self,
        patience_s: float = 10.0,
        threads: int = 1,
        again_s: float = 0.1,
        clock: Callable[[], float] = monotonic,
        cpu_times: Callable[[], CpuTimes] | None = None,
        own_s: Callable[[], float] = process_time,
    ) -> None:
        """Begin now.

        Args:
            patience_s: seconds that may be lost in rounds that do not count.
            threads: that run at once; if they are more than the cores they wait for each other,
                and what they wait says nothing.
            again_s: seconds from one of these to the next round.
            clock: tells seconds.
            cpu_times: of the cores that are measured on; None: those of this process's threads.
            own_s: CPU time of this process, in seconds.
        """
        cores = cores_of_threads()
        self._cores = len(cores)
        self._cpu_times = cpu_times or (lambda: read_cpu_times(cores))
        self._own_s = own_s
        self._can_wait_for_others = threads <= len(cores)
        self._clock = clock
        self._patience_s = patience_s
        self._again_s = again_s
        self._looks = [self._look()]  # the first one at least WINDOW_S ago
        self._round_began = clock()
        self._lost_s = 0.0
        self._waits: list[float] = []  # of rounds that did not count for that
        self._takes: list[float] = []
        self._steals: list[float] = []
        self.held = 0
        self.counted = 0

    @property
    def has_given_up(self) -> bool:
        """True if too much time went into rounds that did not count."""
        return self._lost_s >= self._patience_s and self._lost >= LEAST_LOST

    @property
    def _lost(self) -> int:
        return self.held - self.counted

    def begin(self) -> None:
        self._round_began = self._clock()

    def end(self, waits: Iterable[Sequence[float]] | None) -> bool:
        """End a round; returns whether it counts.

        ``waits`` has, for each contender, the longest waits for cores in its samples, relative to
        the samples. None: threads of what is measured wait for each other, so that their waits do
        not tell of others.
        """
        self.held += 1
        taken, stolen = self._lost_parts()
        waited = max((median(samples) for samples in waits or () if samples), default=0.0)
        is_by_others = self._can_wait_for_others and taken * self._cores > LEAST_TAKEN
        if is_by_others and waited > MOST_WAITED:
            self._waits.append(waited)
        elif is_by_others and waits is None and taken > MOST_TAKEN:
            self._takes.append(taken)
        elif stolen > MOST_STOLEN:
            self._steals.append(stolen)
        else:
            self.counted += 1
            return True
        return False

    def a_moment(self, pause: YieldToRequests) -> Generator[None, None, None]:
        """Let others work for a moment after a round that did not count, and count its time."""
        if self._again_s:
            idle(self._again_s, pause)
        self._lost_s += self._clock() - self._round_began
        yield None

    @property
    def has_lost_too_many(self) -> bool:
        """True if so many rounds did not count that the others prove too little."""
        return self._lost >= LEAST_LOST and self._lost > MOST_LOST * self.held

    @property
    def reason(self) -> str:
        most = max(self._waits, self._takes, self._steals, key=len)
        part = median(most)
        if most is self._waits:
            why = f"threads waited for their cores for {part / (1 + part):.0%} of a run"
        elif most is self._takes:
            why = f"other processes took {part:.0%} of the cores"
        else:
            why = f"the host of this machine took {part:.0%} of the cores"
        return f"{self._lost} of {self.held} rounds of the comparison did not count: {why}"

    def _look(self) -> _Look:
        return _Look(self._clock(), self._cpu_times(), self._own_s())

    def _lost_parts(self) -> tuple[float, float]:
        """Parts of the cores' time that others, and the host, took: in the round, or a bit longer.

        Less where that is below ``WINDOW_S``: then few ticks tell of it.
        """
        now = self._look()
        since_s = min(self._round_began, now.at_s - WINDOW_S)
        self._looks.append(now)
        while len(self._looks) > 2 and self._looks[1].at_s <= since_s:
            del self._looks[0]
        before = self._looks[0]
        took, elapsed_s = now.cores.since(before.cores), now.at_s - before.at_s
        scale = min(1.0, elapsed_s / WINDOW_S)
        own_part = (now.own_s - before.own_s) / (elapsed_s * self._cores) if elapsed_s else 1.0
        return (took.busy_part - own_part) * scale, took.stolen_part * scale
