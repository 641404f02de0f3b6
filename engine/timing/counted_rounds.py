"""Which rounds of a comparison count: those in which what is measured had its cores.

    round ──waits of its threads, by sample──┐──> counts
          ──what the host took of the cores──┴──> does not: forgotten, and held again a moment later
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
from time import monotonic

from braid.core.cpu_times import CpuTimes, read_cpu_times
from braid.engine.runtime.lost_cores import cores_of_threads
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.contenders import idle
from braid.engine.timing.samples import MOST_WAITED

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


class CountedRounds:
    """Judges the rounds of one comparison."""

    def __init__(
        self,
        patience_s: float = 10.0,
        threads: int = 1,
        again_s: float = 0.1,
        clock: Callable[[], float] = monotonic,
        cpu_times: Callable[[], CpuTimes] | None = None,
    ) -> None:
        """Begin now.

        Args:
            patience_s: seconds that may be lost in rounds that do not count.
            threads: that run at once; if they are more than the cores they wait for each other,
                and what they wait says nothing.
            again_s: seconds from one of these to the next round.
            clock: tells seconds.
            cpu_times: of the cores that are measured on; None: those of this process's threads.
        """
        cores = cores_of_threads()
        self._cpu_times = cpu_times or (lambda: read_cpu_times(cores))
        self._can_wait_for_others = threads <= len(cores)
        self._clock = clock
        self._patience_s = patience_s
        self._again_s = again_s
        self._looks = [(clock(), self._cpu_times())]  # the first one at least WINDOW_S ago
        self._round_began = clock()
        self._lost_s = 0.0
        self._waits: list[float] = []  # of rounds that did not count for that
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

    def end(self, waits: Iterable[Sequence[float]]) -> bool:
        """End a round; returns whether it counts.

        ``waits`` has, for each contender, the longest waits for cores in its samples, relative to
        the samples.
        """
        self.held += 1
        waited = 0.0
        if self._can_wait_for_others:
            waited = max((median(samples) for samples in waits if samples), default=0.0)
        stolen = self._stolen()
        if waited > MOST_WAITED:
            self._waits.append(waited)
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
        if len(self._waits) >= len(self._steals):
            waited = median(self._waits)
            why = f"threads waited for their cores for {waited / (1 + waited):.0%} of a run"
        else:
            why = f"the host of this machine took {median(self._steals):.0%} of the cores"
        return f"{self._lost} of {self.held} rounds of the comparison did not count: {why}"

    def _stolen(self) -> float:
        """Part of the cores' time that the host took, over the round or a little longer."""
        now = self._clock()
        since = min(self._round_began, now - WINDOW_S)
        self._looks.append((now, self._cpu_times()))
        while len(self._looks) > 2 and self._looks[1][0] <= since:
            del self._looks[0]
        took = self._looks[-1][1].since(self._looks[0][1])
        elapsed_s = now - self._looks[0][0]
        return took.stolen_part * min(1.0, elapsed_s / WINDOW_S)
