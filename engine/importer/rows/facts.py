"""What is known of a value when a model runs on a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from braid.core.errors import BraidError
from braid.core.graph import Operator

Shape = tuple[int, ...]


class RowsMeet(BraidError):
    """Nothing shows that rows stay apart; the message names the operator and gives the reason."""

    def __init__(self, reason: str, operator: str = "") -> None:
        super().__init__(f"{operator} {reason}" if operator else reason)
        self.operator = operator


class Constant(Enum):
    """Fact of a value that no row decides."""

    SAME = 0  # equal in each batch
    EXTENTS = 1  # numbers that are affine in the number of rows


@dataclass(frozen=True, slots=True)
class Rows:
    """Fact of a value that is made of rows; a row depends on no other and not on its place.

    Dimension ``axis`` has the extent ``outer * rows * inner``: a reshape may have joined the rows
    with the dimensions before them and behind them.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    has_place: bool = False  # its last dimension begins with the place of the row: index tuples


@dataclass(frozen=True, slots=True)
class Places:
    """Fact of a constant that counts the rows, which lie along ``axis``.

    The elements of row r lie between ``r * step + least`` and ``r * step + most``.
    """

    axis: int
    step: int
    least: int
    most: int

    @property
    def are_rows(self) -> bool:
        """Whether each element is the place of its row."""
        return (self.step, self.least, self.most) == (1, 0, 0)


Fact = Constant | Rows | Places
SAME, EXTENTS = Constant.SAME, Constant.EXTENTS


@dataclass(frozen=True, slots=True)
class Site:
    """One operator in two batches, with the facts of its operands."""

    operators: tuple[Operator, Operator]
    facts: Sequence[Fact | None]  # None: the operand is absent
    shapes: tuple[Sequence[Shape], Sequence[Shape]]  # of the operands
    results: tuple[Sequence[Shape], Sequence[Shape]]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.operators[0].attributes

    @property
    def ranks(self) -> list[int]:
        return [len(shape) for shape in self.shapes[0]]

    @property
    def result_ranks(self) -> list[int]:
        return [len(shape) for shape in self.results[0]]
