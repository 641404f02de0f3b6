"""A CUDA device that records what it is asked, and does it as badly as CUDA may.

    launch, copy, record, wait ──> operations, each with those it comes after (events and streams)
    synchronise, replay        ──> all of them, in any order that this allows, on CPU tensors

Nothing is computed before it must be; a launch only finds out shapes. Freed memory is overwritten
by the next launch on its stream, whether or not that needs it. A capture refuses what CUDA refuses:
kernels that were not warmed up or read on the host, events from outside, streams that were not
joined, anything that waits, replays or frees. What was refused once does not end well. Time is
simulated: each launch takes ``duration_us``, and operations not ordered by events overlap.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from braid.engine.cuda.driver.interface import (
    ORIGIN,
    Event,
    Graph,
    MemoryUse,
    Pool,
    Stream,
)
from braid.engine.program.kernel import Run
from tests.engine.cuda.memory import Allocator, Block, Ref


class CudaError(RuntimeError):
    def __init__(self, text: str, error_code: int) -> None:
        super().__init__(f"CUDA error: {text}\nCUDA kernel errors might be reported later.")
        self.error_code = error_code


class _NoHostReads(TorchDispatchMode):
    """Refuses calls that wait for the device or copy from pageable memory."""

    REFUSED = (
        "item",
        "_local_scalar_dense",
        "is_nonzero",
        "nonzero",
        "masked_select",
        "lift_fresh",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.REFUSED:
            raise CudaError("operation not permitted when stream is capturing", 900)
        return func(*args, **(kwargs or {}))


@dataclass(eq=False, repr=False)
class Operation:
    kind: str  # launch, copy, replay, overwrite, synchronise
    stream: Stream
    after: frozenset["Operation"]
    reads: list[Ref] = field(default_factory=list)
    writes: list[Ref] = field(default_factory=list)
    do: Callable[[], None] = lambda: None
    duration_us: float = 0.0
    run: Run | None = None  # of a launch
    ended_us: float | None = None  # once done


@dataclass(eq=False)
class _Line:
    """State of a stream: what its next operation comes after; of a capture, if it takes part."""

    eager: frozenset[Operation] = frozenset()
    captured: frozenset[Operation] | None = None


@dataclass(eq=False)
class _Mark:
    after: frozenset[Operation] = frozenset()
    captured: bool = False
    floor_us: float = 0.0


@dataclass(eq=False)
class Capture:
    """What a graph consists of."""

    origin: Stream
    pool: Pool
    operations: list[Operation] = field(default_factory=list)
    is_invalid: bool = False  # something in it was refused


class RecordingDriver:
    def __init__(self, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self.device = torch.device("cpu")
        self.rng = random.Random(seed)
        self.duration_us: Callable[[Run], float] = lambda _: 1.0
        self.speed: Callable[[], float] = lambda: 1.0  # asked at each replay
        self.replay_us = 5.0  # what a replay takes beside its operations
        self.before_launch: Callable[[RecordingDriver, Run], None] = lambda driver, run: None
        self.now_us = 0.0
        self.operations: list[Operation] = []  # eager ones, all of them
        self.pending: list[Operation] = []
        self.captures: list[Capture] = []
        self.capturing: Capture | None = None
        self.live_graphs: set[Graph] = set()
        self.live_pools: set[Pool] = set()
        self.warm: set[tuple[object, tuple[int, ...]]] = set()
        self.streams: dict[object, Stream] = {}
        self.refuses_to_lock = False
        self.workspace_bytes = 0  # of cuBLAS, made with each stream and kept
        self._workspaces: list[Tensor] = []
        self.allocator = Allocator(capacity_bytes, self._freed)
        self._overwrites: dict[object, list[Block]] = {}  # stream -> blocks freed since its launch
        self._pinned: list[Tensor] = []
        self._locked: list[Tensor] = []
        self._known: frozenset[Operation] = frozenset()  # synchronisations

    # Streams and events

    def stream(self, index: int) -> Stream:
        if index not in self.streams:
            self.streams[index] = Stream(index, _Line(self._known))
            if self.workspace_bytes:
                home = None, self.streams[index]
                self._workspaces.append(self.allocator.allocate(home, self.workspace_bytes))
        return self.streams[index]

    def event(self, *, timed: bool = False) -> Event:
        return Event(timed, _Mark())

    def record(self, event: Event, stream: Stream) -> None:
        line, mark = stream.handle, event.handle
        mark.captured = line.captured is not None
        mark.after = line.eager if line.captured is None else line.captured
        mark.floor_us = self.now_us

    def wait(self, event: Event, stream: Stream) -> None:
        line, mark = stream.handle, event.handle
        if mark.captured:
            if self.capturing is None:
                raise CudaError("operation failed: event of a capture that is over", 907)
            line.captured = (line.captured or frozenset()) | mark.after
        elif line.captured is not None:
            raise CudaError("dependency created on uncaptured work in another stream", 905)
        else:
            line.eager |= mark.after

    def reached(self, event: Event) -> bool:
        self._refuse_in_captures()
        if self.rng.random() < 0.2:  # time goes by
            self.synchronise(event)
        return all(operation.ended_us is not None for operation in event.handle.after)

    def elapsed_us(self, start: Event, end: Event) -> float:
        assert start.timed, "the event has no time"
        assert end.timed, "the event has no time"
        return _time(end.handle) - _time(start.handle)

    # Work

    def launch(self, stream: Stream, run: Run, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        with self._refusals():
            self.before_launch(self, run)
        refs = [tensor if tensor is None else self.allocator.ref(tensor) for tensor in inputs]
        self._check_warm(stream, run, refs)
        with self._refusals():  # for shapes and views only; what it computes is thrown away
            found = run(*inputs)
        results = [found] if isinstance(found, Tensor) else list(found)
        shown = {t.untyped_storage().data_ptr() for t in inputs if t is not None}
        fresh = [t.untyped_storage().data_ptr() not in shown for t in results]
        overwrite = self._overwrite(stream)
        pool = self.capturing.pool if self.capturing else None
        placed = iter(
            self.allocator.place(
                (pool, stream), [t for t, new in zip(results, fresh, strict=True) if new]
            )
        )
        results = [next(placed) if new else t for t, new in zip(results, fresh, strict=True)]
        del found
        writes = [self._ref(t) if new else None for t, new in zip(results, fresh, strict=True)]
        given = [tensor if ref is None else ref for tensor, ref in zip(inputs, refs, strict=True)]

        def do() -> None:
            tensors = [item.tensor() if isinstance(item, Ref) else item for item in given]
            made = run(*tensors)
            answers = [made] if isinstance(made, Tensor) else made
            for ref, tensor in zip(writes, answers, strict=True):
                if ref is not None:
                    ref.tensor().copy_(tensor)

        operation = self._put(stream, "launch", overwrite)
        operation.reads = [ref for ref in refs if ref is not None]
        operation.writes = [ref for ref in writes if ref is not None]
        operation.do, operation.run = do, run
        operation.duration_us = self.duration_us(run)
        return results

    def _check_warm(self, stream: Stream, run: Run, refs: Sequence[Ref | None]) -> None:
        """CUDA loads kernels, and cuDNN plans for alignments, outside of captures only."""
        aligned = tuple(ref.offset % 512 for ref in refs if ref is not None)
        if stream.handle.captured is None:
            assert self.capturing is None, "work on a stream that is no part of the capture"
            self.warm.add((run, aligned))
        elif (run, aligned) not in self.warm:
            self._refuse_in_captures()

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        to, given = self.allocator.ref(target), self.allocator.ref(source)
        for tensor, ref in ((target, to), (source, given)):
            assert ref or self._is_page_locked(tensor), "memory is not page-locked"
        operation = self._put(stream, "copy", [])
        operation.reads = [given] if given else []
        operation.writes = [to] if to else []

        ends = [tensor if ref is None else ref for tensor, ref in ((target, to), (source, given))]

        def do() -> None:
            into, content = (end.tensor() if isinstance(end, Ref) else end for end in ends)
            into.copy_(content)

        operation.do = do

    def _put(self, stream: Stream, kind: str, also: Sequence[Operation]) -> Operation:
        line = stream.handle
        after = line.eager if line.captured is None else line.captured
        operation = Operation(kind, stream, after | frozenset(also))
        if line.captured is None:
            line.eager = frozenset({operation})
            self.operations.append(operation)
            self.pending.append(operation)
        else:
            assert self.capturing is not None
            line.captured = frozenset({operation})
            self.capturing.operations.append(operation)
        return operation

    def _freed(self, block: Block) -> None:
        self._overwrites.setdefault(block.home, []).append(block)

    def _overwrite(self, stream: Stream) -> list[Operation]:
        """The worst that may happen to memory freed on this stream: its next launch writes it."""
        pool = self.capturing.pool if self.capturing else None
        blocks = self._overwrites.pop((pool, stream), [])
        if not blocks:
            return []
        line = stream.handle
        kept = line.eager, line.captured
        operation = self._put(stream, "overwrite", [])
        line.eager, line.captured = kept
        operation.writes = [Ref(b, 0, torch.uint8, (b.memory.size,), (1,)) for b in blocks]

        def do() -> None:
            for block in blocks:
                block.poison()

        operation.do = do
        return [operation]

    def _ref(self, tensor: Tensor) -> Ref:
        ref = self.allocator.ref(tensor)
        assert ref is not None
        return ref

    # Captures

    def _refuse_in_captures(self) -> None:
        if self.capturing is not None:
            self.capturing.is_invalid = True
            raise CudaError("operation not permitted when stream is capturing", 900)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """In a capture: errors of CUDA inside spoil it, as reading on the host does."""
        if self.capturing is None:
            yield
            return
        try:
            with _NoHostReads():  # type: ignore[no-untyped-call]
                yield
        except CudaError:
            self.capturing.is_invalid = True
            raise

    def pool(self) -> Pool:
        pool = Pool(len(self.live_pools))
        self.live_pools.add(pool)
        return pool

    def release_pool(self, pool: Pool) -> None:
        assert not any(graph.handle.pool is pool for graph in self.live_graphs), "still in use"
        self.live_pools.remove(pool)
        self.synchronise()
        self.allocator.trim(self.live_pools)

    def begin_capture(self, origin: Stream, pool: Pool) -> None:
        assert self.capturing is None, "one capture at a time"
        assert pool in self.live_pools
        self.capturing = Capture(origin, pool)
        origin.handle.captured = frozenset()

    def end_capture(self) -> Graph:
        capture = self.capturing
        assert capture is not None
        joined = ancestors(capture.origin.handle.captured)
        if capture.is_invalid:
            raise CudaError("operation failed due to a previous error during capture", 901)
        loose = [o for o in capture.operations if o not in joined and o.kind != "overwrite"]
        if loose:
            raise CudaError("capturing stream has unjoined work", 904)
        self._leave_capture()
        self.captures.append(capture)
        graph = Graph(capture)
        self.live_graphs.add(graph)
        return graph

    def abort_capture(self, joined: Sequence[Stream]) -> None:
        if self.capturing is not None:
            self._leave_capture()

    def _leave_capture(self) -> None:
        self.capturing = None
        for stream in self.streams.values():
            stream.handle.captured = None

    def replay(self, graph: Graph, stream: Stream) -> None:
        assert graph in self.live_graphs, "the graph was destroyed"
        self._refuse_in_captures()
        inside = graph.handle.operations
        speed = self.speed()

        def do() -> None:
            for operation in inside:
                for ref in operation.writes:
                    ref.block.poison()
            for operation in any_order(inside, self.rng):
                operation.do()

        operation = self._put(stream, "replay", [])
        operation.do = do
        operation.reads = [ref for inner in inside for ref in inner.reads]
        operation.writes = [ref for inner in inside for ref in inner.writes]
        operation.duration_us = (self.replay_us + makespan_us(inside)) * speed

    def destroy(self, graph: Graph) -> None:
        self.synchronise()
        self.live_graphs.remove(graph)

    # Memory

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        assert self.capturing is None
        like = torch.empty(tuple(shape), dtype=dtype)
        return self.allocator.place((None, self.stream(ORIGIN)), [like])[0]

    def lock_pages(self, memory: Tensor) -> None:
        if self.refuses_to_lock:
            raise CudaError("operation not supported", 801)
        self._locked.append(memory)

    def _is_page_locked(self, tensor: Tensor) -> bool:
        first = tensor.data_ptr()
        return any(tensor is known for known in self._pinned) or any(
            held.data_ptr() <= first and first + tensor.nbytes <= held.data_ptr() + held.nbytes
            for held in self._locked
        )

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self._pinned.append(torch.empty(tuple(shape), dtype=dtype))
        return self._pinned[-1]

    def memory(self) -> MemoryUse:
        known = self.allocator
        return MemoryUse(known.allocated_bytes, known.peak_bytes, known.reserved_bytes)

    def reset_peak(self) -> None:
        self.allocator.peak_bytes = self.allocator.allocated_bytes

    def trim(self) -> None:
        self.synchronise()
        self.allocator.trim({graph.handle.pool for graph in self.live_graphs})

    def synchronise(self, event: Event | None = None) -> None:
        """Everything is done, in any order; an event's waiters see no more than they must."""
        self._refuse_in_captures()
        wanted = None if event is None else ancestors(event.handle.after)
        now = [o for o in self.pending if wanted is None or o in wanted]
        self.pending = [o for o in self.pending if o not in set(now)]
        for operation in any_order(now, self.rng):
            ended = [before.ended_us or 0.0 for before in operation.after]
            operation.ended_us = max([self.now_us, *ended]) + operation.duration_us
            operation.do()
        self.now_us = max([self.now_us, *((o.ended_us or 0.0) for o in now)])
        over = self.operations if event is None else event.handle.after
        self._host_knows(Operation("synchronise", self.stream(ORIGIN), frozenset(over)))

    def _host_knows(self, synchronised: Operation) -> None:
        """What the host has waited for comes before all that it asks for afterwards."""
        synchronised.ended_us = self.now_us
        self.operations.append(synchronised)
        self._known |= {synchronised}
        for stream in self.streams.values():
            stream.handle.eager |= {synchronised}


def _time(mark: _Mark) -> float:
    ended = [operation.ended_us for operation in mark.after]
    assert None not in ended, "the event has not been reached"
    return max([mark.floor_us, *(end for end in ended if end is not None)])


def ancestors(operations: frozenset[Operation]) -> set[Operation]:
    found: set[Operation] = set()
    open_ = list(operations)
    while open_:
        operation = open_.pop()
        if operation not in found:
            found.add(operation)
            open_ += operation.after
    return found


def any_order(operations: Sequence[Operation], rng: random.Random) -> Iterator[Operation]:
    """A random order in which every operation comes after those it must."""
    inside = set(operations)
    waiting = {o: len(o.after & inside) for o in operations}
    readers: dict[Operation, list[Operation]] = {o: [] for o in operations}
    for operation in operations:
        for before in operation.after & inside:
            readers[before].append(operation)
    ready = [o for o in operations if not waiting[o]]
    while ready:
        operation = ready.pop(rng.randrange(len(ready)))
        yield operation
        for reader in readers[operation]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)


def makespan_us(operations: Sequence[Operation]) -> float:
    """How long they take if all that may overlap does."""
    ends: dict[Operation, float] = {}
    for operation in operations:  # in the order of the calls, so predecessors come first
        start = max((ends[before] for before in operation.after), default=0.0)
        ends[operation] = start + operation.duration_us
    return max(ends.values(), default=0.0)


def races(operations: Sequence[Operation]) -> list[tuple[Operation, Operation]]:
    """Pairs that touch the same block, one of them writing, in no certain order."""
    number = {operation: i for i, operation in enumerate(operations)}
    before: list[int] = []
    for operation in operations:
        seen = 0
        for other in operation.after:
            if other in number:
                seen |= before[number[other]] | 1 << number[other]
        before.append(seen)
    found = []
    for i, late in enumerate(operations):
        for j in range(i):
            early = operations[j]
            written, touched = _blocks(early.writes), _blocks(early.reads) | _blocks(early.writes)
            clash = written & _blocks(late.reads) or touched & _blocks(late.writes)
            if clash and not before[i] >> j & 1:
                found.append((early, late))
    return found


def _blocks(refs: Sequence[Ref]) -> set[Block]:
    return {ref.block for ref in refs}
