"""Blocks: parts of a graph that are scheduled one after the other, each by itself.

    a ─> b ─┬─> c ─> e ─> f        every unit comes before or after b, so nothing could ever run
            └─> d ───┘             beside b: a narrow cut, and splitting there loses nothing

First the graph is split at all narrow cuts. A block that is still too large for the exact search
is halved where the fewest tensors are live: two between the cells of NASNet, which read two
predecessors each.
"""

from itertools import pairwise

from braid.scheduler.dag import Dag
from braid.scheduler.units import UnitGraph

MAX_BLOCK_STATES = 20_000

Units = tuple[int, ...]
"""Consecutive units of the whole graph: a block."""


def split_blocks(graph: UnitGraph, max_block_ops: int | None) -> list[Units]:
    """Consecutive runs of units, each small enough for the exact search.

    Without a limit the whole graph is one block.
    """
    if max_block_ops is None:
        return [tuple(range(len(graph)))] if len(graph) else []
    dag = Dag.of(graph.predecessors)
    blocks = []
    for block in _between(_narrow_cuts(dag), range(len(graph))):
        blocks += _split_large(graph, dag, block, max_block_ops)
    return blocks


def _narrow_cuts(dag: Dag) -> list[int]:
    """Positions right after a unit that every other unit is an ancestor or a descendant of.

    Its ancestors all stand before it and its descendants after it, so each position is a prefix
    of the topological order.
    """
    n = len(dag)
    return [
        unit + 1
        for unit in range(n - 1)
        if (dag.ancestors[unit] | dag.descendants[unit] | 1 << unit) == dag.everything
    ]


def _between(cuts: list[int], units: range) -> list[Units]:
    edges = [units.start, *cuts, units.stop]
    return [tuple(range(a, b)) for a, b in pairwise(edges) if a < b]


def _split_large(graph: UnitGraph, dag: Dag, block: Units, limit: int) -> list[Units]:
    """The block itself if it is searchable, else its parts at the best cuts."""
    if len(block) <= limit and searchable(graph.restrict(block)):
        return [block]
    cut = _best_cut(dag, block[0], block[-1] + 1)
    parts = _between([cut], range(block[0], block[-1] + 1))
    return [piece for part in parts for piece in _split_large(graph, dag, part, limit)]


def _best_cut(dag: Dag, start: int, stop: int) -> int:
    """The position in the middle half of a block where a cut loses least.

    In this order: few live tensors beyond two; right after a wide join, where cells end, so that
    equal cells are cut alike; even halves.
    """

    def loss(cut: int) -> tuple[int, int, int]:
        later = (1 << stop) - (1 << cut)
        live = sum(1 for after in dag.after[:cut] if after & later)
        joined = dag.before[cut - 1].bit_count()
        return max(0, live - 2), -joined, abs(2 * cut - start - stop)

    quarter = (stop - start) // 4
    return min(range(start + max(1, quarter), stop - quarter), key=loss)


def searchable(block: UnitGraph) -> bool:
    """True if the exact search of this graph as one block visits no more states than allowed."""
    reads = [(1 << unit, mask) for unit, mask in enumerate(Dag.of(block.predecessors).before)]
    layer, count = {0}, 1
    while layer and count <= MAX_BLOCK_STATES:
        layer = {
            state | unit
            for unit, mask in reads
            for state in layer
            if not state & unit and state & mask == mask
        }
        count += len(layer)
    return count <= MAX_BLOCK_STATES
