"""Contest of the candidates of a model, device and batch size, decided by batches in service.

    next() ──> candidate of the next batch ──worker──> took(candidate, run time)
                  ├─ incumbent                              ├─ two blocks complete: one pair
                  └─ challenger: one block of a pair        └─ pair: ratio, interval ──> incumbent,
                                                               leaving candidates, decision

A *pair* is two blocks of a few consecutive batches, one of the incumbent and one of a challenger,
in random order. The first run of a block is not counted: the thread pools and caches still belong
to the other candidate. What slows the machine down for a while slows both blocks down, and their
ratio stays. The ratio of a challenger is the trimmed mean of the logarithms of its pairs' ratios;
newer pairs weigh more. A median would know only the commonest state of a host that changes states.

Each pair costs time: the challenger's excess and the first runs after a change. A challenger waits
until requests have paid for its next pair (``LOSS``), so close ones are compared often and slow
ones rarely. A candidate leaves only by pairs that span a minute, because the state of a host may
change within seconds, and the order of candidates with it. A host that never rests is decided by
the mean over its states.

No clock, no I/O, no threads: callers bring run times and, if they have it, the time.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from statistics import median

from braid.core.measurement import check_latency
from braid.core.schedule import ContestRow

MOST_CANDIDATES = 3

BLOCK = 3
"""Batches of a block; the first one is not counted."""

LOSS = 0.005
"""Part of the time of requests that pairs of one challenger may cost."""

CREDIT = 0.2
"""Cost of pairs that a challenger may have before requests have paid for it, in requests.

A pair of a candidate that is as fast by its estimate begins with the first request.
"""

FIRST_RUNS = 0.05, 0.05, 0.05
"""Assumed excess of first runs over the rest of their blocks, before pairs have shown it."""

CHANGES = 4.0
"""Cost of a pair's two changes over that excess: half of it falls on the runs that follow."""

EARLY_SHARE = 1 / 3
"""Largest share of requests for challengers during the first ``EARLY_PAIRS`` pairs."""

EARLY_PAIRS = 100

MARGIN = log(1.01)
"""Difference of latencies (logarithm of their ratio) that counts."""

HALF_LIFE = 8
"""Pairs after which a pair weighs half."""

FAR = 4.0
"""Standard deviations; two pairs in a row so far off on the same side tell of another state."""

WINDOW = 64
"""Newest pairs of a challenger that are kept."""

TRIMMED = 0.2
"""Part of the pairs left out on either side of the mean."""

SPREAD = 0.05
"""Assumed standard deviation of pairs, worth ``SPREAD_PAIRS`` pairs."""

SPREAD_PAIRS = 3.0

DOUBT = 3.0
"""Half width of an interval, in standard errors: the interval is looked at after each pair."""

LEAST_PAIRS = 5
"""Pairs before a candidate leaves."""

LEAST_SPAN_S = 60.0
"""Least time from a challenger's first pair to its last, before it leaves or counts as equal."""

ENOUGH_PAIRS = 200
"""Pairs of each challenger after which candidates that may be equal count as equal."""

UNSTEADY_S = 300.0
"""Age of a contest from which its pairs need not be of one state of the host."""

PATIENCE = 16
"""Batches after which a pair whose run times have not all come is given up."""

LEFT_S = 60.0
"""Time outside of its interval after which the incumbent's latency has changed."""

_RECENT = 32  # run times kept of each candidate
_LEVEL_RUNS, _LEVEL_S = 9, 1.0  # least runs and time of one level of the incumbent's latency
_LEVELS = 256
_LEVEL_MARGIN = 1.05
_WEIGHTS = [0.5 ** (age / HALF_LIFE) for age in range(WINDOW - 1, -1, -1)]  # the newest last


@dataclass(slots=True, eq=False)
class _Challenge:
    """Ratios of one candidate to the incumbent; of the incumbent itself there are none."""

    name: str
    order: int  # simpler candidates first
    estimate_us: float | None
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # logarithms
    pairs: int = 0
    since: float | None = None  # time of the first pair in the present state of the host
    until: float | None = None
    ratio: float = 0.0
    usual: float = 0.0  # mean of the ratio over time, in all states of the host
    known_s: float = 0.0  # that it is a mean of
    error: float = SPREAD  # standard error of the ratio
    deviation: float = SPREAD  # standard deviation of its pairs
    deviation_before: float = SPREAD  # without the newest one
    off: float = 0.0  # of its newest pair from the ratio before
    turn: int = 0  # of its newest pair, among all that began
    recent_us: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    debt: float = 0.0  # cost of its pairs, in requests, less what requests have paid
    first_runs: deque[float] = field(default_factory=lambda: deque(FIRST_RUNS, maxlen=WINDOW))
    change: float = CHANGES * FIRST_RUNS[0]  # cost of a pair's two changes, in requests
    cost: float = CHANGES * FIRST_RUNS[0]  # expected of a pair, in requests

    @property
    def low(self) -> float:
        return self.ratio - DOUBT * self.error

    @property
    def high(self) -> float:
        return self.ratio + DOUBT * self.error

    @property
    def has_span(self) -> bool:
        """True if its pairs in this state span a minute, or their times are unknown."""
        return self.since is None or self.until is None or self.until - self.since >= LEAST_SPAN_S

    @property
    def slow_us(self) -> float:
        """Latency that few runs exceed; infinite if nothing is known."""
        if self.recent_us:
            return max(self.recent_us)
        return inf if self.estimate_us is None else 2.0 * self.estimate_us

    def add(self, ratio: float) -> None:
        """Add a pair; earlier ones are forgotten if it shows the host in another state."""
        far = FAR * min(self.deviation, self.deviation_before)
        off = ratio - self.ratio if self.ratios else 0.0
        self.ratios.append(ratio)
        if min(off, self.off) > far or max(off, self.off) < -far:
            self.ratios = deque([self.ratios[-2], ratio], maxlen=WINDOW)
            off, self.since = 0.0, None
        self.off, self.deviation_before = off, self.deviation
        self.weigh()

    def reached(self, at: float | None) -> None:
        """Count the time since its pair before, if that is known, in its newest ratio."""
        passed_s = 1.0 if at is None or self.until is None else max(at - self.until, 1e-3)
        self.known_s += passed_s
        self.usual += (self.ratio - self.usual) * passed_s / self.known_s
        self.since = at if self.since is None else self.since
        self.until = at

    def weigh(self) -> None:
        if self.ratios:
            self.ratio, self.error, self.deviation = trimmed_mean(self.ratios)
        else:
            self.ratio = 0.0
        self.cost = BLOCK * max(exp(self.ratio) - 1.0, 0.0) + self.change


@dataclass(slots=True)
class _Pair:
    challenger: _Challenge
    runs: tuple[str, ...]  # candidates in the order in which they run
    is_free: bool
    issued: int = 0
    waited: int = 0
    taken_us: dict[str, list[float]] = field(default_factory=dict)


class Contest:
    """Chooses the candidate of each batch, and the incumbent by the pairs that this yields.

    Batches may be under way at once: ``next`` may be called again before ``took``. The same calls
    and the same seed give the same choices.

    Args:
        candidates: at most three, the simplest first; among equals it serves.
        estimates_us: their latencies as screened, in the same order; the best serves first.
        loser_share: largest share of requests for challengers after the first 100 pairs.
        seed: of the order of blocks.

    Raises:
        ValueError: the candidates are none, too many or the same; or the share is not in (0, 0.5].
        ImpossibleLatency: an estimate is not a finite number above zero.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        *,
        estimates_us: Sequence[float] | None = None,
        loser_share: float = 0.10,
        seed: int = 0,
    ) -> None:
        if not 0.0 < loser_share <= 0.5:
            raise ValueError(f"loser_share is {loser_share}; choose more than 0 and at most 0.5")
        self._loser_share = loser_share
        self._random = random.Random(seed)
        self._open(candidates, estimates_us)

    def _open(self, candidates: Sequence[str], estimates_us: Sequence[float] | None) -> None:
        if not 1 <= len(set(candidates)) == len(candidates) <= MOST_CANDIDATES:
            raise ValueError(
                f"a contest is of one to {MOST_CANDIDATES} different candidates, not of "
                f"{list(candidates)}"
            )
        if estimates_us is not None and len(estimates_us) != len(candidates):
            raise ValueError(f"{len(estimates_us)} estimates for {len(candidates)} candidates")
        for estimate_us in estimates_us or ():
            check_latency(estimate_us)
        self._in = {
            name: _Challenge(name, order, None if estimates_us is None else estimates_us[order])
            for order, name in enumerate(candidates)
        }
        least_us = min(estimates_us) * exp(MARGIN) if estimates_us else inf
        first = next(one for one in self._in.values() if (one.estimate_us or 0.0) <= least_us)
        self._incumbent = first
        for one in self._in.values():
            if one is not first and one.estimate_us and first.estimate_us:
                one.ratios.append(log(one.estimate_us / first.estimate_us))
                one.weigh()
        self._left: list[_Challenge] = []
        self._pair: _Pair | None = None
        self._rest = 0  # batches until the next challenger's block
        self._requests = self._pairs = self._turns = 0
        self._since: float | None = None  # time of the first pair
        self._lost = 0.0
        self.is_decided = len(self._in) == 1
        """True if one candidate is left, or the rest counts as equal: no more pairs are needed."""
        self._watch = _Watch()

    @property
    def candidates(self) -> tuple[str, ...]:
        """Candidates that are in, the incumbent first."""
        others = (name for name in self._in if name != self._incumbent.name)
        return self._incumbent.name, *others

    @property
    def incumbent(self) -> str:
        return self._incumbent.name

    @property
    def is_in_pair(self) -> bool:
        """True while a pair is under way: in idle time, pause when it has ended."""
        return self._pair is not None

    @property
    def left_interval(self) -> bool:
        """True if the incumbent's latency has been outside of its interval for a minute."""
        return self._watch.left_s >= LEFT_S

    @property
    def estimated_loss(self) -> float:
        """Part of the requests' time that was lost to candidates slower than the incumbent."""
        return self._lost / self._requests if self._requests else 0.0

    def next(
        self, *, may_explore: bool = True, slack_us: float | None = None, free: bool = False
    ) -> str:
        """Return the candidate of the next batch.

        Args:
            may_explore: False if the queue is full: the incumbent serves, a challenger's block is
                given up.
            slack_us: time to the batch's deadline; no challenger that might miss it is chosen.
            free: nobody waits for the batch (idle time, screening): pairs follow one another. A
                request gives up a pair that began so.
        """
        pair = self._pair
        if pair is not None and (pair.is_free and not free):
            pair = self._pair = None
        if pair is None and may_explore and not self.is_decided:
            pair = self._begin(slack_us, free=free)
        name = self._incumbent.name
        if pair is not None and pair.issued < len(pair.runs):
            name = pair.runs[pair.issued]
            pair.issued += 1
            if name != self._incumbent.name and not (
                may_explore and (slack_us is None or pair.challenger.slow_us < slack_us)
            ):
                name, self._pair = self._incumbent.name, None
        elif pair is not None:
            pair.waited += 1
            if pair.waited > PATIENCE:
                self._pair = None
        if not free:
            self._pay(name)
        return name

    def _pay(self, name: str) -> None:
        self._requests += 1
        self._rest -= 1
        one = self._in[name]
        if one is not self._incumbent:
            self._lost += max(exp(one.ratio) - 1.0, 0.0)
        if not self.is_decided:
            for one in self._in.values():
                if one.debt + one.cost > CREDIT:
                    one.debt -= LOSS

    def _begin(self, slack_us: float | None, *, free: bool) -> _Pair | None:
        """The next pair; None if no challenger is due."""
        if self._rest > 0 and not free:
            return None
        due = [
            one
            for one in self._in.values()
            if one is not self._incumbent
            and (free or one.debt + one.cost <= CREDIT)
            and (slack_us is None or one.slow_us < slack_us)
        ]
        if not due:
            return None
        challenger = min(due, key=lambda one: (one.turn, one.low, one.order))
        self._turns += 1
        challenger.turn = self._turns
        names = self._incumbent.name, challenger.name
        first, last = names if self._random.random() < 0.5 else names[::-1]
        runs = (first,) * BLOCK + (last,) * BLOCK
        if free:
            runs += (self._incumbent.name,) * BLOCK  # a request that comes next finds it warm
        self._pair = _Pair(challenger, runs, free, taken_us={name: [] for name in names})
        if not free:
            challenger.debt += challenger.cost
            share = EARLY_SHARE if self._pairs < EARLY_PAIRS else self._loser_share
            self._rest = round(BLOCK / share)
        return self._pair

    def took(self, candidate: str, run_us: float, *, at: float | None = None) -> bool:
        """Note the worker's run time of a batch; ``at`` is its end, in seconds of any steady clock.

        A candidate that has left is ignored. Returns whether this completed a pair, so that others
        may have left or lead. Raises ImpossibleLatency.
        """
        check_latency(run_us)
        one = self._in.get(candidate)
        if one is None:
            return False
        one.recent_us.append(run_us)
        if one is self._incumbent and at is not None:
            self._watch.took(run_us, at, learns=not self.is_decided)
        pair = self._pair
        taken_us = pair.taken_us.get(candidate) if pair is not None else None
        if pair is None or taken_us is None:
            return False
        if candidate in pair.runs[: pair.issued] and len(taken_us) < BLOCK:
            taken_us.append(run_us)
        is_complete = all(len(taken_us) == BLOCK for taken_us in pair.taken_us.values())
        if not is_complete or pair.issued < len(pair.runs):
            return False
        self._pair = None
        self._count(pair, at)
        return True

    def _count(self, pair: _Pair, at: float | None) -> None:
        """Add a complete pair, then change the incumbent and let slow candidates go."""
        one = pair.challenger
        names = (one.name, self._incumbent.name)
        block_us = [median(pair.taken_us[name][1:]) for name in names]  # not the first run
        one.first_runs.append(pair.taken_us[one.name][0] / block_us[0] - 1.0)
        one.change = CHANGES * max(median(one.first_runs), 0.0)
        one.add(log(block_us[0] / block_us[1]))
        one.pairs += 1
        self._pairs += 1
        self._since = at if self._since is None else self._since
        one.reached(at)
        if one.ratio < -one.error / 2:
            self._change(one)
        for other in list(self._in.values()):
            is_slower = other.pairs >= LEAST_PAIRS and other.low > MARGIN  # beyond doubt
            if other is not self._incumbent and other.has_span and is_slower:
                self.drop(other.name)
        self._decide(at)

    def _change(self, best: _Challenge) -> None:
        """Make ``best`` the incumbent, and all ratios relative to it."""
        before, ahead, usual = self._incumbent, best.ratio, best.usual
        before.ratios = deque((-ratio for ratio in best.ratios), maxlen=WINDOW)
        before.pairs, before.since, before.until = best.pairs, best.since, best.until
        best.ratios = deque(maxlen=WINDOW)
        for other in (*self._in.values(), *self._left):
            if other is not best and other is not before:
                other.ratios = deque((ratio - ahead for ratio in other.ratios), maxlen=WINDOW)
            other.weigh()
            other.usual -= usual
        before.usual, before.known_s = -usual, best.known_s
        self._incumbent = best
        self._pair = None
        self._watch = _Watch()

    def _decide(self, at: float | None = None) -> None:
        """Let the best serve for good once enough pairs span one state, or five minutes."""
        others = [one for one in self._in.values() if one is not self._incumbent]
        is_steady = all(one.has_span for one in others)
        is_old = at is not None and self._since is not None and at - self._since >= UNSTEADY_S
        if all(one.pairs >= ENOUGH_PAIRS for one in others) and (is_steady or is_old):
            ratios = {one: one.ratio if is_steady else one.usual for one in self._in.values()}
            most = min(ratios.values()) + MARGIN / 2
            equal = (one for one, ratio in ratios.items() if ratio <= most)
            simplest = min(equal, key=lambda one: one.order)
            if simplest is not self._incumbent:
                self._change(simplest)
            self.is_decided = True

    def drop(self, candidate: str) -> None:
        """Let a candidate go; the best of the others serves. Raises ValueError for the last one."""
        if candidate not in self._in:
            return
        if len(self._in) == 1:
            raise ValueError(
                f"{candidate} is the last candidate of its contest; register the model again"
            )
        if candidate == self._incumbent.name:
            others = [one for one in self._in.values() if one is not self._incumbent]
            self._change(min(others, key=lambda one: (one.ratio, one.order)))
        if self._pair is not None and candidate in self._pair.runs:
            self._pair = None
        self._left.append(self._in.pop(candidate))
        self._decide()

    def reopen(self, candidates: Sequence[str]) -> None:
        """Begin again, with these candidates, of which nothing is known.

        The incumbent, if among them, goes on serving. Raises as the constructor does.
        """
        before = self._incumbent.name
        self._open(candidates, None)
        self._incumbent = self._in.get(before, self._incumbent)

    def table(self) -> tuple[ContestRow, ...]:
        """One row for each candidate, the incumbent first; those that left come last.

        Latencies are of the newest runs. Who counts the requests adds their shares.
        """
        return tuple(map(self._row, (*(self._in[name] for name in self.candidates), *self._left)))

    def _row(self, one: _Challenge) -> ContestRow:
        latency_us = median(one.recent_us) if one.recent_us else None
        if one is self._incumbent:
            return ContestRow(one.name, self._pairs, 1.0, 1.0, 1.0, latency_us=latency_us)
        ratio = exp(one.ratio) if one.ratios else None
        low, high = (exp(one.low), exp(one.high)) if len(one.ratios) > 1 else (None, None)
        return ContestRow(one.name, one.pairs, ratio, low, high, latency_us=latency_us)


@dataclass(slots=True)
class _Watch:
    """Latency of the incumbent: has it left the interval of its levels?

    A level is the median of some consecutive runs. All levels count while the contest is open.
    """

    runs_us: list[float] = field(default_factory=list)
    since: float = 0.0  # when the runs of the present level began
    levels_us: deque[float] = field(default_factory=lambda: deque(maxlen=_LEVELS))
    left_at: float | None = None
    left_s: float = 0.0

    def took(self, run_us: float, at: float, *, learns: bool) -> None:
        """Note a run of the incumbent; ``learns``: its level belongs to the interval."""
        if not self.runs_us:
            self.since = at
        self.runs_us.append(run_us)
        if len(self.runs_us) < _LEVEL_RUNS or at - self.since < _LEVEL_S:
            return
        level_us = median(self.runs_us[-_RECENT:])
        self.runs_us.clear()
        low_us = min(self.levels_us, default=inf) / _LEVEL_MARGIN
        is_inside = low_us <= level_us <= max(self.levels_us, default=0.0) * _LEVEL_MARGIN
        if learns or len(self.levels_us) < LEAST_PAIRS or is_inside:
            self.levels_us.append(level_us)
            self.left_at, self.left_s = None, 0.0
        else:
            self.left_at = self.since if self.left_at is None else self.left_at
            self.left_s = at - self.left_at


def trimmed_mean(values: Sequence[float] | deque[float]) -> tuple[float, float, float]:
    """Weighted trimmed mean, its standard error (Tukey and McLaughlin 1963) and the deviation."""
    weights = _WEIGHTS[-len(values) :]
    ordered = sorted(zip(values, weights, strict=True))
    total = sum(weights)
    cut, kept = TRIMMED * total, (1.0 - 2.0 * TRIMMED) * total
    below = mean = 0.0
    least, most = ordered[0][0], ordered[-1][0]
    for value, weight in ordered:
        inside = min(below + weight, total - cut) - max(below, cut)
        if below <= cut:
            least = value
        if below < total - cut:
            most = value
        below += weight
        if inside > 0.0:
            mean += value * inside / kept
    squares = sum(weight * (min(max(value, least), most) - mean) ** 2 for value, weight in ordered)
    variance = (squares + SPREAD_PAIRS * SPREAD**2) / (total + SPREAD_PAIRS)
    effective = total**2 / sum(weight**2 for weight in weights)
    error = sqrt(variance / effective) / (1.0 - 2.0 * TRIMMED)
    return mean, error, sqrt(variance)
