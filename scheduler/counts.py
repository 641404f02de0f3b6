"""Counts of what a search looked at, in the units of IOS, Table 1."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """Counts of a search. States and transitions are summed over the distinct blocks."""

    operators: int = 0
    width: int = 0  # d: most units of which no two are ordered
    states: int = 0  # sets S of unscheduled units; 0 for planners that do not search
    transitions: int = 0  # pairs (S, E), IOS section 4.2
    stages_measured: int = 0  # distinct stages whose latency was asked

    def __add__(self, block: SearchCounts) -> SearchCounts:
        return replace(
            self,
            states=self.states + block.states,
            transitions=self.transitions + block.transitions,
        )
