"""How much a search looked at, in the units of IOS, Table 1."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """Counts of an exact search: of one block, or of a whole graph."""

    operators: int = 0
    width: int = 0  # d: most units of which no two are ordered
    states: int = 0  # of the distinct blocks, summed
    transitions: int = 0  # pairs (S, E), IOS section 4.2; of the distinct blocks, summed
    schedules: int = 1  # lists of stages within the limits; of all blocks, multiplied
    stages_measured: int = 0  # distinct stages whose latency was asked

    def with_block(self, block: SearchCounts) -> SearchCounts:
        """Add a block that had to be searched."""
        return replace(
            self.with_repeated(block),
            states=self.states + block.states,
            transitions=self.transitions + block.transitions,
        )

    def with_repeated(self, block: SearchCounts) -> SearchCounts:
        """Add a block that is equal to one that was searched before."""
        return replace(self, schedules=self.schedules * block.schedules)
