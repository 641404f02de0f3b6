"""Blocks: parts of a graph that are scheduled one after the other, each by itself.

    a ─> b ─┬─> c ─> e ─> f        every unit comes before or after b, so nothing could ever run
            └─> d ───┘             beside b: a narrow cut, and splitting there loses nothing

First the graph is split at all narrow cuts. A block that is still too large for the exact search
is split where the fewest tensors are live (two between the cells of NASNet, which read two
predecessors each) and, among those, where the fewest pairs of units lose the chance to overlap.
"""

from __future__ import annotations

from itertools import pairwise

from scheduler.dag import Dag, bits
from scheduler.units import UnitGraph

MAX_BLOCK_STATES = 20_000

Block = tuple[int, ...]
"""Consecutive units of the whole graph."""


def split_blocks(graph: UnitGraph, max_block_ops: int | None) -> list[Block]:
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


def _between(cuts: list[int], units: range) -> list[Block]:
    edges = [units.start, *cuts, units.stop]
    return [tuple(range(a, b)) for a, b in pairwise(edges) if a < b]


def _split_large(graph: UnitGraph, dag: Dag, block: Block, limit: int) -> list[Block]:
    """The block itself if it is searchable, else its parts at the best cuts."""
    if len(block) <= limit and _count_states(graph, block) <= MAX_BLOCK_STATES:
        return [block]
    limit = min(limit, (len(block) + 1) // 2)
    cuts = _best_cuts(dag, block, limit)
    parts = _between(cuts, range(block[0], block[-1] + 1))
    return [piece for part in parts for piece in _split_large(graph, dag, part, limit)]


def _best_cuts(dag: Dag, block: Block, limit: int) -> list[int]:
    """Cuts into parts of at most ``limit`` units with the least loss in sum, by dynamic program.

    loss[k] = min over j in [k - limit, k) of  loss[j] + loss of a cut at k
    """
    start, stop = block[0], block[-1] + 1
    best: dict[int, tuple[tuple[int, int], int]] = {start: ((0, 0), start)}
    for k in range(start + 1, stop + 1):
        live, pairs = _loss(dag, start, k, stop) if k < stop else (0, 0)
        (tensors, lost), j = min((best[j][0], j) for j in range(max(start, k - limit), k))
        best[k] = (tensors + live, lost + pairs), j
    cuts: list[int] = []
    k = best[stop][1]
    while k > start:
        cuts.insert(0, k)
        k = best[k][1]
    return cuts


def _loss(dag: Dag, start: int, cut: int, stop: int) -> tuple[int, int]:
    """Live tensors beyond two, and pairs of units that could have overlapped across a cut."""
    later = (1 << stop) - (1 << cut)
    earlier = range(start, cut)
    live = sum(1 for unit in range(cut) if dag.after[unit] & later)
    pairs = sum((later & ~dag.descendants[unit]).bit_count() for unit in earlier)
    return max(0, live - 2), pairs


def _count_states(graph: UnitGraph, block: Block) -> int:
    """Number of states of the exact search, counted no further than the limit."""
    before = Dag.of(graph.restrict(block).predecessors).before
    everything = (1 << len(before)) - 1
    layer, count = {0}, 1
    while layer and count <= MAX_BLOCK_STATES:
        layer = {
            state | 1 << unit
            for state in layer
            for unit in bits(everything & ~state)
            if not before[unit] & ~state
        }
        count += len(layer)
    return count
