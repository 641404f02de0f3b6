"""Maximum matching in bipartite graphs, and what follows from it: the width of a graph."""

from collections.abc import Sequence

from braid.scheduler.dag import Dag, bits


def maximum_matching(edges: Sequence[int]) -> dict[int, int]:
    """A largest set of pairs (left, right) in which no vertex occurs twice.

    Each of ``edges`` is the set of right vertices that a left vertex may be paired with. Cost:
    O(V E) in the worst case (Kuhn); each search visits a right vertex at most once.
    """
    left_of: dict[int, int] = {}  # right vertex -> the left one it is paired with
    for left in range(len(edges)):
        _augment(edges, left, left_of)
    return {left: right for right, left in left_of.items()}


def width(dag: Dag) -> int:
    """Size d of the largest set of units of which no two are ordered.

    Dilworth: it equals the least number of chains that cover the graph, which is the number of
    units minus a maximum matching between units and their descendants.
    """
    return len(dag) - len(maximum_matching(dag.descendants))


def _augment(edges: Sequence[int], start: int, left_of: dict[int, int]) -> None:
    """Pair ``start`` along an alternating path, if there is one. Depth first, without recursion."""
    unseen = -1
    path: list[tuple[int, int]] = []  # (left, right) from the start on
    left = start
    while True:
        choices = edges[left] & unseen
        free = next((r for r in bits(choices) if r not in left_of), None)
        if free is not None:
            left_of.update({right: step for step, right in [*path, (left, free)]})
            return
        if choices:
            right = (choices & -choices).bit_length() - 1
            unseen &= ~(1 << right)
            path.append((left, right))
            left = left_of[right]
        elif path:
            left, _ = path.pop()
        else:
            return
