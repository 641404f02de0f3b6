"""lazy-ios: the optimum of IOS, measuring only the stages that could be on a best path.

The dynamic program of ``scheduler/ios.py`` is a shortest path from the full set to the empty one
whose edges are stages and whose weights are expensive to know. As LazySP does (Dellin and
Srinivasa, ICAPS 2016): use lower bounds for what is not measured, find the shortest path, measure
what is unmeasured on it, repeat. When the shortest path is fully measured, no other path can be
shorter: it is the optimum, and only a small part of the stages was ever measured.

    cost[S] <= min over E of cost[S - E] + bound[E]        held for all states, all the time

Both sides only grow, so stale values stay valid and nothing is solved twice. A *descent* walks
from the full set along the best endings, raises the bounds and costs it meets, and ends either
with a path along which everything is exact, or with a higher cost of the full set (real-time
dynamic programming; Barto, Bradtke and Singh 1995).
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from braid.core.schedule import Stage
from braid.scheduler.blocks import Units
from braid.scheduler.bounds import LatencyBounds
from braid.scheduler.counts import SearchCounts
from braid.scheduler.ios import rename
from braid.scheduler.problem import Problem
from braid.scheduler.signature import StageKey
from braid.scheduler.stages import StageMemo, StageSpace, Strategies, Variant

PROOF_GAP = 0.01
"""Closer to the bound than this, relative, what is left to measure is proof."""

_ROUNDING = 1e-9  # relative; sums of the same latencies in another order


class LazySearch:
    """The search in one block. ``lower_us <= optimum <= upper_us`` at any time."""

    def __init__(self, space: StageSpace, memo: StageMemo, bounds: LatencyBounds) -> None:
        self._space = space
        self._memo = memo
        self._table = BoundTable(space, memo, bounds)
        self._last = {state: space.endings.of(state) for state in space.endings.states if state}
        self._cost = {0: 0.0}
        for S in self._last:
            self._cost[S] = min(self._values(S))
        self._doubt = Doubt()
        self.upper_us = math.inf
        self.best: list[Stage] = []  # first stage first; its latencies sum up to ``upper_us``

    @property
    def counts(self) -> SearchCounts:
        transitions = sum(map(len, self._last.values()))
        return SearchCounts(states=len(self._cost), transitions=transitions)

    @property
    def lower_us(self) -> float:
        """Lower bound of all schedules of the block in microseconds, if the bounds are right."""
        lower = self._cost[self._space.endings.everything]
        return min(lower, self.upper_us) / (1 + self._table.violation)

    def run(self, enough: Callable[[float, float], bool]) -> None:
        """Search until the best schedule is proved optimal, or ``enough(lower, upper)``."""
        everything = self._space.endings.everything
        while not (self.best and enough(self.lower_us, self.upper_us)):
            path = self._descend()
            shortest = sum(self._table[E] for E in path)
            if shortest > self._cost[everything] * (1 + _ROUNDING):
                continue  # what was seen on the way made another path the shortest
            exact = all(self._table.measured(self._table.choose(E)) for E in path)
            self._measure(path)
            if exact:
                return

    def _descend(self) -> list[int]:
        """Walk from the full set along best endings, raising bounds and costs; last stage first."""
        S = self._space.endings.everything
        path: list[int] = []
        states: list[int] = []
        while S:
            E = self._best_ending(S)
            path.append(E)
            states.append(S)
            S ^= E
        for S in reversed(states):
            self._cost[S] = max(self._cost[S], min(self._values(S)))
        return path

    def _best_ending(self, S: int) -> int:
        """The best ending of a state, all that is measured considered."""
        while True:
            values = self._values(S)
            cost = min(values)
            E = self._last[S][values.index(cost)]
            if not self._table.refresh(E):
                self._cost[S] = max(self._cost[S], cost)
                return E

    def _values(self, S: int) -> list[float]:
        """Lower bound of S for each of its endings."""
        cost, table = self._cost, self._table
        return [cost[S ^ E] + table[E] for E in self._last[S]]

    def _measure(self, path: list[int]) -> None:
        """Measure what is unmeasured on a path; keep the path if it is the best so far.

        While a good schedule is still wanted, all of it. Once the rest is proof, only the stages
        that are likely to lie far above their bounds: these alone may rule the path out.
        """
        chosen = [(E, self._table.choose(E)) for E in path]
        unmeasured = [step for step in chosen if not self._table.measured(step[1])]
        doubts = [self._doubt.excess_us(self._table[E], variant) for E, variant in unmeasured]
        proving = self.upper_us <= self.lower_us * (1 + PROOF_GAP)
        for (E, variant), doubt in zip(unmeasured, doubts, strict=True):
            if not proving or doubt >= max(doubts) / 2:
                bound = self._table[E]
                self._doubt.learn(bound, self._table.measure(E, variant), variant)
        if all(self._table.measured(variant) for _, variant in chosen):
            self._keep(chosen)

    def _keep(self, chosen: list[tuple[int, Variant]]) -> None:
        stages = [
            self._space.stage(variant, self._table.measure(E, variant))
            for E, variant in reversed(chosen)
        ]
        total = sum(stage.latency_us or 0.0 for stage in stages)
        if total < self.upper_us:
            self.upper_us, self.best = total, stages


class Doubt:
    """Excess of measurements over their bounds: an interference factor, learnt by width.

    It orders measurements and never enters a bound.
    """

    def __init__(self) -> None:
        self._factors: dict[int, list[float]] = {}  # number of groups -> excess, relative

    def learn(self, bound_us: float, latency_us: float, variant: Variant) -> None:
        if bound_us > 0:
            self._factors.setdefault(len(variant[1]), []).append(latency_us / bound_us - 1)

    def excess_us(self, bound_us: float, variant: Variant) -> float:
        """Expected excess of the latency over its bound, in microseconds."""
        factors = self._factors.get(len(variant[1]))
        return bound_us * (fmean(factors) if factors else 1.0)


@dataclass(slots=True)
class Budget:
    """Limit of a search: a relative gap over the whole graph, or a time.

    Each block may use its share of the time left, by its number of units, so that the first one
    does not use up the time of the rest.
    """

    gap: float
    deadline: float  # of time.monotonic()
    lower_us: float = 0.0  # of the finished blocks
    upper_us: float = 0.0
    block_deadline: float = math.inf  # of the block at hand

    def open(self, share: float) -> None:
        """Give the next block a share of the time that is left."""
        now = time.monotonic()
        self.block_deadline = now + share * max(0.0, self.deadline - now)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.block_deadline

    def enough(self, lower_us: float, upper_us: float) -> bool:
        """True if the present block may stop; slack left by earlier blocks counts for it, too."""
        lower, upper = self.lower_us + lower_us, self.upper_us + upper_us
        return upper <= lower * (1 + self.gap) or self.is_over

    def close(self, lower_us: float, upper_us: float) -> None:
        self.lower_us += lower_us
        self.upper_us += upper_us

    @property
    def proved_gap(self) -> float:
        """Relative distance of the plan to the best one possible, at most."""
        return max(0.0, self.upper_us / self.lower_us - 1) if self.lower_us else 0.0


def plan_lazily(problem: Problem, budget: Budget) -> tuple[list[Stage], SearchCounts]:
    """The optimum of each block, or a schedule within the budget's gap of it."""
    strategies = Strategies(merge_groups=problem.facts.merge_groups)
    stages: list[Stage] = []
    counts = SearchCounts()
    solved: dict[str, tuple[Units, LazySearch]] = {}
    blocks, unit_us = list(problem.blocks()), problem.unit_latencies_us()
    unsolved = {signature: len(block) for block, signature in blocks}
    for block, signature in blocks:
        if signature not in solved:
            budget.open(len(block) / sum(unsolved.values()))
            del unsolved[signature]
            space = problem.open(block, strategies)
            alone_us = [unit_us[unit] for unit in block]
            bounds = LatencyBounds(alone_us, block, problem.facts)
            search = LazySearch(space, problem.memo, bounds)
            search.run(budget.enough)
            counts += search.counts
            solved[signature] = block, search
        first, search = solved[signature]
        budget.close(search.lower_us, search.upper_us)
        stages += [rename(stage, dict(zip(first, block, strict=True))) for stage in search.best]
    return stages, counts


class BoundTable(dict[int, float]):
    """Ending -> lower bound of its best variant, exact where that variant is measured.

    Values only grow, and are raised on demand: ``refresh`` brings one ending up to date with
    everything measured since it was last looked at.
    """

    def __init__(self, space: StageSpace, memo: StageMemo, bounds: LatencyBounds) -> None:
        super().__init__()
        self._space = space
        self._memo = memo
        self._bounds = bounds
        self._concurrent: dict[int, float] = {}
        self._merge: dict[int, float] = {}
        self._keys: dict[int, StageKey] = {}  # of the concurrent variants
        self._alike: defaultdict[StageKey, list[int]] = defaultdict(list)
        self._compared_at: dict[int, int] = {}  # ending -> measured stages it was compared with
        self._noted: set[StageKey] = set()  # measured, and passed on to the bounds
        self.violation = 0.0  # how far a measurement was below its bound, relative

    def __missing__(self, ending: int) -> float:
        """Enter an ending, with the bounds that need no search."""
        for variant in self._space.variants(ending):
            key = self._space.key(variant)
            latency = self._memo.latency_us.get(key)
            value = self._bounds.of(variant) if latency is None else latency
            if variant[0] == "merge":
                self._merge[ending] = value
            else:
                self._concurrent[ending] = value
                self._keys[ending] = key
                self._alike[key].append(ending)
        return self._combine(ending)

    def refresh(self, ending: int) -> bool:
        """Raise the value of an ending as far as what is measured allows; whether it rose."""
        before = self[ending]
        if ending in self._concurrent:
            self._refresh_concurrent(ending)
        if ending in self._merge:
            merge: Variant = ("merge", (ending,))
            latency_us = self._memo.latency_us.get(self._space.key(merge))
            self._merge[ending] = self._merge[ending] if latency_us is None else latency_us
        return self._combine(ending) > before

    def choose(self, ending: int) -> Variant:
        """The variant that the value of an ending stands for; a merge wins a tie."""
        merge = self._merge.get(ending, math.inf)
        if merge < math.inf and merge <= self._concurrent.get(ending, math.inf):
            return "merge", (ending,)
        return "concurrent", self._space.endings.groups(ending)

    def measured(self, variant: Variant) -> bool:
        return self._space.key(variant) in self._memo.latency_us

    def measure(self, ending: int, variant: Variant) -> float:
        """Latency of a variant of an ending, asked from the cost if it is not known yet."""
        key = self._space.key(variant)
        if key not in self._memo.latency_us:
            bound = (self._merge if variant[0] == "merge" else self._concurrent)[ending]
            latency = self._memo.ask(key, self._space.stage(variant))
            if latency > 0:
                self.violation = max(self.violation, bound / latency - 1)
        self.refresh(ending)
        return self._memo.latency_us[key]

    def _refresh_concurrent(self, ending: int) -> None:
        key = self._keys[ending]
        groups = self._space.endings.groups(ending)
        latency = self._memo.latency_us.get(key)
        if latency is None:
            since, self._compared_at[ending] = self._compared_at.get(ending, 0), self._bounds.learnt
            bound = self._bounds.from_sub_stages(ending, len(groups), since)
            self._concurrent[ending] = max(self._concurrent[ending], bound)
            return
        self._concurrent[ending] = latency
        if key not in self._noted:
            self._noted.add(key)
            for alike in self._alike[key]:
                self._concurrent[alike] = latency
                self._combine(alike)
                self._bounds.learn(alike, len(groups), latency)

    def _combine(self, ending: int) -> float:
        value = min(self._concurrent.get(ending, math.inf), self._merge.get(ending, math.inf))
        self[ending] = value
        return value
