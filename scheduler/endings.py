"""Endings: what may run last in a set of units, enumerated without ever building one too many.

An *ending* of a set S is a non-empty part E of S that nothing else in S reads from (IOS, section
4.1). Its groups are the connected components of E, and each of them is an ending of S by itself.
Two connected endings that share no unit share no edge either, so

    endings of S with groups of at most r units, at most s of them
        = sets of at most s pairwise disjoint connected endings of S of at most r units

and both limits prune while the sets are built. The connected endings of S + {t} follow from
those of S: the ones that t does not read from, and t joined with disjoint ones that it reads.

With ``single_root``, a group has one source only. Then it is that source with everything in S
that follows from it, and there are far fewer endings. The paper defines groups as here; its
authors' code restricts them so, and the counts of Table 1 come from that.
"""

from collections.abc import Collection
from dataclasses import dataclass

from braid.core.errors import SearchTooLarge
from braid.scheduler.dag import Dag, bits
from braid.scheduler.matching import width

MAX_STATES = 200_000


@dataclass(frozen=True, slots=True)
class Pruning:
    """Limits of the endings that count (IOS, section 4.3); None means no limit."""

    max_group_ops: int | None = 3  # r
    max_groups: int | None = 8  # s
    single_root: bool = False


class Endings:
    """States and endings of one block.

    A *state* is a set of units closed under predecessors: what is left to schedule after some
    last stages were taken away.
    """

    def __init__(self, dag: Dag, pruning: Pruning) -> None:
        """Enumerate the states. Raises SearchTooLarge: there are more than ``MAX_STATES``."""
        self._dag = dag
        self._max_group_ops = pruning.max_group_ops or len(dag)
        self._max_groups = pruning.max_groups or len(dag)
        self._limit_can_bind = self._max_groups < width(dag)  # groups of a stage are unordered
        self._single_root = pruning.single_root
        self._connected: dict[int, list[int]] = {0: []}  # state -> its connected endings
        self._groups: dict[int, tuple[int, ...]] = {0: ()}  # ending -> its groups
        self._enumerate_states()

    @property
    def everything(self) -> int:
        return self._dag.everything

    @property
    def states(self) -> Collection[int]:
        """All states, smaller sets first, the empty one at the very first."""
        return self._connected.keys()

    def of(self, state: int) -> list[int]:
        """All endings of ``state`` within the limits, each once."""
        groups_of, most = self._groups, self._max_groups
        unions = [0]
        for group in self._connected[state]:
            if self._limit_can_bind:
                larger = [
                    union | group
                    for union in unions
                    if not union & group and len(groups_of[union]) < most
                ]
            else:
                larger = [union | group for union in unions if not union & group]
            for ending in [ending for ending in larger if ending not in groups_of]:
                groups_of[ending] = (*groups_of[ending ^ group], group)
            unions += larger
        return unions[1:]

    def groups(self, ending: int) -> tuple[int, ...]:
        return self._groups[ending]

    def _enumerate_states(self) -> None:
        """Breadth first from the empty state, one unit at a time."""
        units = [(unit, 1 << unit, reads) for unit, reads in enumerate(self._dag.before)]
        layer = [0]
        while layer:
            larger: list[int] = []
            for state in layer:
                for unit, added, reads in units:
                    if state & added or state & reads != reads:
                        continue
                    if state | added not in self._connected:
                        self._connected[state | added] = self._connected_endings(state, unit)
                        larger.append(state | added)
            if len(self._connected) > MAX_STATES:
                raise SearchTooLarge(len(self._dag), layer[0].bit_count())
            layer = larger

    def _connected_endings(self, state: int, unit: int) -> list[int]:
        """Connected endings of ``state`` with ``unit`` added, ``unit`` being a sink there."""
        added, reads = 1 << unit, self._dag.before[unit]
        kept: list[int] = []
        joined = [added]
        for group in self._connected[state]:
            if not group & reads:
                kept.append(group)
                continue
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
