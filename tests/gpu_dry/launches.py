"""Which bytes the launches of a capture touch, in which order the graph has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from braid.engine.cuda.driver.interface import Graph, Pool, Stream
from braid.engine.cuda.driver.torch_driver import TorchDriver
from braid.engine.onednn.library import Run
from tests.gpu_dry import device

Span = tuple[int, int]
"""First address of some memory, and the first one behind it."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One call of ``launch`` in a capture; of no operation where the result is a view."""

    operations: range  # of the graph
    reads: frozenset[Span]
    writes: frozenset[Span]

    def clashes(self, other: Launched) -> bool:
        """Whether one writes what the other touches."""
        return _overlap(self.writes, other.reads | other.writes) or _overlap(
            self.reads, other.writes
        )


class NotingDriver(TorchDriver):
    """A driver that notes the launches of the latest capture, and the order in its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launched] = []
        self.order: list[int] = []

    def begin_capture(self, origin: Stream, pool: Pool) -> None:
        self.launches.clear()
        super().begin_capture(origin, pool)

    def end_capture(self) -> Graph:
        graph = super().end_capture()
        self.order = device.graph_order()
        return graph

    def launch(self, stream: Stream, run: Run, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        first = device.captured()
        results = super().launch(stream, run, inputs)
        if first >= 0:
            reads = _spans(tensor for tensor in inputs if tensor is not None)
            operations = range(first, device.captured())
            self.launches.append(Launched(operations, reads, _spans(results) - reads))
        return results

    def comes_before(self, early: Launched, late: Launched) -> bool:
        """Whether each operation of ``early`` comes before each of ``late`` in the graph."""
        bits = sum(1 << operation for operation in early.operations)
        return all(bits & ~self.order[operation] == 0 for operation in late.operations)

    def races(self) -> int:
        """Pairs of launches in no certain order of which one writes what the other touches."""
        return sum(
            early.clashes(late)
            and not self.comes_before(early, late)
            and not self.comes_before(late, early)
            for early, late in combinations(self.launches, 2)
        )


def _spans(tensors: Iterable[Tensor]) -> frozenset[Span]:
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.is_cuda]
    return frozenset((s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages if s.nbytes())


def _overlap(some: Iterable[Span], others: Iterable[Span]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
