"""Lower bounds on the latency of stages that were not measured.

Each bound is *admissible*, never above the true latency, as long as the device keeps its side:

    longest group   a group runs its units one after the other      sum of measured latencies
    total work      units side by side share the device             sum of work, each resource
    sub-stage       adding units never makes a stage faster         a measured part of the stage

The first needs the fixed price of a stage (``StageOverheads``): a group pays it once, a measured
unit contains it each time. Without it the longest unit stands for its group.
"""

from collections.abc import Sequence

from braid.core.measurement import DeviceFacts, StageOverheads, UnitProfile
from braid.scheduler.dag import bits
from braid.scheduler.stages import Variant

_Group = tuple[float, tuple[float, ...]]  # latency beyond the stage's fixed price; work


class LatencyBounds:
    """Bounds for the stages of one block."""

    def __init__(
        self, unit_latency_us: Sequence[float], units: Sequence[int], facts: DeviceFacts
    ) -> None:
        """Args: latency of each unit of the block; the block's units in the whole graph."""
        self._latency_us = unit_latency_us
        self._profiles = [facts.profiles[unit] for unit in units] if facts.profiles else []
        self._overheads = facts.overheads
        self._groups = _GroupBounds(unit_latency_us, self._profiles, facts.overheads)
        self._measured: list[tuple[int, float]] = []  # sub-stages: units, latency beyond overhead

    def of(self, variant: Variant) -> float:
        """Bound from the longest group and from total work, in microseconds."""
        strategy, groups = variant
        if strategy == "merge":  # one kernel that does no less than each of its units
            return max(self._latency_us[unit] for unit in bits(groups[0]))
        parts = [self._groups[group] for group in groups]
        longest = max([latency for latency, _ in parts])
        overheads = self._overheads
        if overheads is None:
            return longest
        work = max(map(sum, zip(*[work for _, work in parts], strict=True)), default=0.0)
        return max(longest, overheads.launch_us + work) + self._price(len(groups))

    def learn(self, ending: int, groups: int, latency_us: float) -> None:
        """Note a measured concurrent stage; the sets it is part of are no faster."""
        self._measured.append((ending, latency_us - self._price(groups)))

    @property
    def learnt(self) -> int:
        return len(self._measured)

    def from_sub_stages(self, ending: int, groups: int, since: int) -> float:
        """Bound from the measured stages noted after the first ``since`` ones; 0 if none fits."""
        others = ~ending
        beyond = max([b for part, b in self._measured[since:] if not part & others], default=0.0)
        return beyond + self._price(groups)

    def _price(self, groups: int) -> float:
        if self._overheads is None:
            return 0.0
        return self._overheads.stage_us + self._overheads.group_us * (groups - 1)


class _GroupBounds(dict[int, _Group]):
    """Group -> its part in the bounds of every stage that contains it."""

    def __init__(
        self,
        latency_us: Sequence[float],
        profiles: Sequence[UnitProfile],
        overheads: StageOverheads | None,
    ) -> None:
        super().__init__()
        self._latency_us = latency_us
        self._profiles = profiles
        self._overheads = overheads

    def __missing__(self, group: int) -> _Group:
        units = list(bits(group))
        latencies = [self._latency_us[unit] for unit in units]
        if self._overheads is None:
            chain = max(latencies)
        else:
            chain = sum(max(0.0, latency - self._overheads.stage_us) for latency in latencies)
        works = [self._profiles[unit].work_us for unit in units] if self._profiles else []
        self[group] = chain, tuple(map(sum, zip(*works, strict=True)))
        return self[group]
