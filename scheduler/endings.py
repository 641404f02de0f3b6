"""Endings: what may run last in a set of units, enumerated without ever building one too many.

An *ending* of a set S is a non-empty part E of S that nothing else in S reads from (IOS, section
4.1). Its groups are the connected components of E, and each of them is an ending of S by itself.
Two connected endings that share no unit share no edge either, so

    endings of S with groups of at most r units, at most s of them
        = sets of at most s pairwise disjoint connected endings of S of at most r units

and both limits prune while the sets are built. The connected endings of S + {t} follow from
those of S: the ones that t does not read from, and t joined with disjoint ones that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.errors import SearchTooLarge
from scheduler.dag import Dag, bits

MAX_STATES = 200_000


class Endings:
    """States and endings of one block under the pruning limits.

    A *state* is a set of units closed under predecessors: what is left to schedule after some
    last stages were taken away. ``states`` lists them by increasing size, the empty one first.
    """

    def __init__(
        self,
        dag: Dag,
        max_group_ops: int | None,
        max_groups: int | None,
        single_root: bool = False,
    ) -> None:
        self._dag = dag
        self._max_group_ops = len(dag) if max_group_ops is None else max_group_ops
        self._max_groups = len(dag) if max_groups is None else max_groups
        self._single_root = single_root
        self._groups: dict[int, list[int]] = {0: []}
        self._enumerate_states()

    @property
    def states(self) -> Iterator[int]:
        """All states, smaller sets first."""
        return iter(self._groups)

    def of(self, state: int) -> list[int]:
        """All endings of ``state`` within the limits, each once."""
        by_groups = [[0]]  # by_groups[k]: unions of k disjoint groups
        for group in self._groups[state]:
            if len(by_groups) <= self._max_groups:
                by_groups.append([])
            for k in range(len(by_groups) - 1, 0, -1):
                by_groups[k] += [union | group for union in by_groups[k - 1] if not union & group]
        return [union for unions in by_groups[1:] for union in unions]

    def groups(self, ending: int) -> tuple[int, ...]:
        """The connected components of an ending, by lowest unit."""
        found = []
        while ending:
            group = self._component(ending, ending & -ending)
            found.append(group)
            ending ^= group
        return tuple(found)

    def _component(self, within: int, seed: int) -> int:
        """The connected component of ``within`` that contains ``seed``."""
        before, after = self._dag.before, self._dag.after
        component = frontier = seed
        while frontier:
            low = frontier & -frontier
            unit = low.bit_length() - 1
            fresh = (before[unit] | after[unit]) & within & ~component
            component |= fresh
            frontier = (frontier ^ low) | fresh
        return component

    def _enumerate_states(self) -> None:
        """Breadth first from the empty state, one unit at a time."""
        before, n = self._dag.before, len(self._dag)
        layer = [0]
        while layer:
            larger: list[int] = []
            for state in layer:
                for unit in range(n):
                    added = 1 << unit
                    if state & added or before[unit] & ~state or state | added in self._groups:
                        continue
                    self._groups[state | added] = self._connected_endings(state, unit)
                    larger.append(state | added)
            if len(self._groups) > MAX_STATES:
                raise SearchTooLarge(n, (layer[0]).bit_count())
            layer = larger

    def _connected_endings(self, state: int, unit: int) -> list[int]:
        """Connected endings of ``state`` with ``unit`` added, ``unit`` being a sink there."""
        added, reads = 1 << unit, self._dag.before[unit]
        kept = [group for group in self._groups[state] if not group & reads]
        joined = [added]
        for group in self._groups[state]:
            if group & reads:
                joined += [
                    union | group
                    for union in joined
                    if not union & group and (union | group).bit_count() <= self._max_group_ops
                ]
        if self._single_root:
            joined = [group for group in joined if self._has_single_root(group)]
        return kept + joined

    def _has_single_root(self, group: int) -> bool:
        return sum(not self._dag.before[unit] & group for unit in bits(group)) == 1
