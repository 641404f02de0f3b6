"""Input of a planner: units, their cost, facts of the device, options."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import EnginePart
from braid.core.schedule import Stage
from braid.scheduler.blocks import Units, split_blocks
from braid.scheduler.cost import Parts, PartsCost
from braid.scheduler.dag import Dag, mask_of
from braid.scheduler.endings import Endings, Pruning
from braid.scheduler.options import PlannerSettings
from braid.scheduler.signature import StageKey, StageKeys, block_signature
from braid.scheduler.stages import StageMemo, StageSpace, Strategies
from braid.scheduler.units import UnitGraph

MOST_CROSSING = 2
"""Values that cross a border, at most, inputs of the graph aside."""


class Problem:
    """One graph to plan. Only the memo changes while it is planned."""

    def __init__(
        self,
        units: UnitGraph,
        memo: StageMemo,
        options: PlannerSettings,
        facts: DeviceFacts,
        graph: OpGraph | None = None,
    ) -> None:
        """``graph``: of the units, for planners whose plans have parts of it."""
        self._graph = graph
        self.units = units
        self.memo = memo
        self.options = options
        self.facts = facts
        self._keys = StageKeys(units, memo.group_numbers)

    def blocks(self) -> Iterator[tuple[Units, str]]:
        """The blocks in order; blocks with equal signatures have the same solutions."""
        for block in split_blocks(self.units, self.options.max_block_ops):
            yield block, block_signature(self.units.restrict(block))

    def open(self, block: Sequence[int], strategies: Strategies) -> StageSpace:
        """Endings of a block and their stages; SearchTooLarge: it has too many states."""
        options = self.options
        pruning = Pruning(options.max_group_ops, options.max_groups, options.single_root)
        endings = Endings(Dag.of(self.units.restrict(block).predecessors), pruning)
        return StageSpace(self.units, block, endings, strategies, self.memo.group_numbers)

    def stage(self, groups: Iterable[Iterable[int]]) -> Stage:
        """A concurrent stage of units of the whole graph, with its latency."""
        ordered = tuple(tuple(group) for group in groups)
        key = self._key(ordered)
        latency = self.memo.latency_us.get(key)
        if latency is None:
            latency = self.memo.ask(key, Stage(ordered))
        return Stage(ordered, latency_us=latency)

    def unit_latencies_us(self) -> list[float]:
        stages = [self.stage([[unit]]) for unit in range(len(self.units))]
        return [stage.latency_us or 0.0 for stage in stages]

    def known_unit_latencies_us(self) -> list[float] | None:
        """Latency of each unit alone, if all of them were asked already."""
        keys = [self._key([[unit]]) for unit in range(len(self.units))]
        latency_us = self.memo.latency_us
        return [latency_us[key] for key in keys] if all(key in latency_us for key in keys) else None

    @property
    def graph(self) -> OpGraph:
        assert self._graph is not None, "only planners of parts ask for it, and have it"
        return self._graph

    @cached_property
    def borders(self) -> dict[int, int]:
        """Positions between units at which parts of the model's file can be cut: ``borders``."""
        return borders(self.graph, self.graph.sources)

    def part(self, units: Iterable[int], engine: str, threads: int, rows: int = 0) -> EnginePart:
        """Units in an engine; on own kernels if that is empty."""
        version = self.facts.engines[engine] if engine else ""
        return EnginePart(tuple(units), engine, version, threads, rows)

    def parts_us(self, stages: Sequence[Parts]) -> Sequence[float]:
        """Latencies of parts side by side in microseconds, as ``PartsCost`` says."""
        assert isinstance(self.memo.cost, PartsCost)
        return self.memo.cost.parts_us(stages)

    def _key(self, groups: Sequence[Sequence[int]]) -> StageKey:
        return self._keys.key([mask_of(group) for group in groups])


def borders(graph: OpGraph, tensors: Collection[str], most: int = MOST_CROSSING) -> dict[int, int]:
    """Positions between units of a static graph at which it can be cut, and the bytes that cross.

    Only ``tensors`` may cross, at most ``most`` of them. A region needs no other border: what it
    reads was made before it, as units stand in order.
    """
    made = graph.producers()
    last = dict(made)
    for at, unit in enumerate(graph.operators):
        last.update((value, at) for value in unit.inputs if value in made)
    crossing: dict[int, list[str]] = {at: [] for at in range(1, len(graph))}
    for value, at in made.items():
        for position in range(at + 1, last[value] + 1):
            crossing[position].append(value)
    return {
        at: sum(graph.spec(value).size_bytes for value in values)
        for at, values in crossing.items()
        if 0 < len(values) <= most and all(value in tensors for value in values)
    }
