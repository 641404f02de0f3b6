"""Latency of each ending of a block if measured, else a lower bound.

Values only grow while nothing is measured twice, and are raised on demand: ``refresh`` brings
one ending up to date with everything measured since it was last looked at.
"""

from __future__ import annotations

import math
from collections import defaultdict

from braid.scheduler.bounds import LatencyBounds
from braid.scheduler.signature import StageKey
from braid.scheduler.stages import StageMemo, StageSpace, Variant


class BoundTable(dict[int, float]):
    """Ending -> lower bound of its best variant, exact where that variant is measured."""

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
