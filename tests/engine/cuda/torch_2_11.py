"""torch.cuda as of 2.11, on a CPU: streams that do all at once, captures by torch's rules.

    capture_begin ── aten calls are done, and noted ── capture_end ── replay: done again, in place

Taken from torch's sources: what a capture changes in the allocators of device and pinned memory,
what ends it, what a refused one leaves behind, who may begin a capture into which pool. Memory is
the CPU's, and is not reused while a graph has noted it. Time is the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Name = tuple[int, int]

MOST_BYTES = 100 << 30
"""More is out of memory."""

READS_ON_HOST = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero"}


class Refused(RuntimeError):
    """What torch.AcceleratorError is like where a capture is refused."""

    error_code = 900


@dataclass(eq=False)
class FakeStream:
    """Work in order; in a capture once it waits for an event of one."""

    capturing: FakeGraph | None = None
    waited_for: set[FakeStream] = field(default_factory=set)  # in this capture
    launches: int = 0  # that made tensors, in captures or not
    captures: int = 0  # that began here

    def synchronize(self) -> None:
        """All is done."""

    def wait_stream(self, _: FakeStream) -> None:
        """All is done there."""


@dataclass(eq=False)
class FakeEvent:
    fake: Torch211
    enable_timing: bool = False
    capturing: FakeGraph | None = None
    after: set[FakeStream] = field(default_factory=set)
    at_s: float = 0.0

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self.fake.current
        self.capturing, self.after = stream.capturing, {stream, *stream.waited_for}
        self.at_s = perf_counter()

    def wait(self, stream: FakeStream) -> None:
        if self.capturing is None and stream.capturing is not None:
            raise Refused("dependency created on uncaptured work in another stream")
        stream.capturing = self.capturing or stream.capturing
        stream.waited_for |= self.after

    def query(self) -> bool:
        self.fake.synchronize()
        return True

    def synchronize(self) -> None:
        self.fake.synchronize()

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.enable_timing, "the event has no time"
        assert end.enable_timing, "the event has no time"
        return (end.at_s - self.at_s) * 1e3


@dataclass
class Memory:
    """Both allocators: who uses which pool, and where allocations go."""

    users: dict[Name, int] = field(default_factory=dict)
    freeable: set[Name] = field(default_factory=set)
    to_device_pool: list[Name] = field(default_factory=list)
    to_pinned_pool: list[Name] = field(default_factory=list)

    def begin(self, name: Name) -> None:
        if name in self.users:
            assert self.users[name] > 0, "a pool that no graph uses"
        self.users[name] = self.users.get(name, 0) + 1
        for routed in (self.to_device_pool, self.to_pinned_pool):
            if name in routed:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            routed.append(name)

    def end(self, _: int, name: Name) -> None:
        """Of the device's allocator only."""
        if name not in self.to_device_pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.to_device_pool.remove(name)

    def release(self, _: int, name: Name) -> None:
        self.users[name] -= 1
        assert self.users[name] >= 0
        if not self.users[name]:
            self.freeable.add(name)

    def empty_cache(self) -> None:
        assert not self.to_device_pool, "captures_underway.empty() INTERNAL ASSERT FAILED"
        for name in self.freeable:
            del self.users[name]
        self.freeable.clear()


class FakeGraph(TorchDispatchMode):
    def __init__(self, fake: Torch211) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake
        self._stream: FakeStream | None = None
        self._name: Name = (0, 0)
        self._has_ended = False
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self.is_invalid = False

    def capture_begin(self, pool: Name = (0, 0), capture_error_mode: str = "global") -> None:
        self._stream, self._name = self._fake.current, pool
        self._fake.memory.begin(pool)
        self._stream.capturing = self._fake.capturing = self
        self._fake.counts_for_a_graph = True
        self._stream.captures += 1
        self.__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and note it."""
        given = kwargs or {}
        if self._fake.current.capturing is not self:
            raise AssertionError(f"{func} on a stream that is no part of the capture")
        if func.name() in READS_ON_HOST:
            self.refuse()
        if func.name() == "aten::empty.memory_format" and args[0] and max(args[0]) > MOST_BYTES:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 140.00 GiB.")
        results = func(*args, **given)
        self._calls.append((func, args, given, results))
        return results

    def refuse(self) -> None:
        self.is_invalid = True
        raise Refused("CUDA error: operation not permitted when stream is capturing")

    def capture_end(self) -> None:
        stream = self._stream
        assert stream is not None
        if self._fake.current is not stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if stream.capturing is not self:
            raise Refused("CUDA error: capture was not initiated in this stream")
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._fake.capturing = None
        captured = {s for s in self._fake.streams if s.capturing is self}
        loose = captured - {stream, *stream.waited_for}
        for each in captured:
            each.capturing = None
            each.waited_for.clear()
        if self.is_invalid or loose:
            if self._fake.ends_refused:
                self._fake.memory.end(0, self._name)
                self._fake.memory.to_pinned_pool.remove(self._name)
            raise Refused("operation failed due to a previous error during capture")
        self._fake.memory.end(0, self._name)
        self._fake.memory.to_pinned_pool.remove(self._name)
        self._fake.counts_for_a_graph = False
        self._has_ended = True

    def replay(self) -> None:
        assert self._has_ended
        with torch.inference_mode():
            for func, args, kwargs, results in self._calls:
                given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
                made = _tensors(func(*args, **kwargs))
                for result, again in zip(_tensors(results), made, strict=True):
                    if result.untyped_storage().data_ptr() not in given:
                        result.copy_(again)

    def pool(self) -> Name:
        if not self._has_ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._name

    def reset(self) -> None:
        if self._has_ended:
            self._fake.memory.release(0, self._name)
        self._has_ended = False
        self._calls.clear()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def check_error(code: int) -> None:
    """``torch.cuda.check_error``."""
    if code:
        raise RuntimeError(f"CUDA error {code}")


class OnCpu(TorchFunctionMode):
    """Tensors for the GPU are made on the CPU; those that make one count as a launch."""

    def __init__(self, fake: Torch211) -> None:
        super().__init__()
        self._fake = fake

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **given)
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0].clone()
        if name == "pin_memory":
            return args[0]
        if self._fake.capturing and (name == "cpu" or func is torch.tensor):
            self._fake.capturing.refuse()
        if given.pop("pin_memory", False) and torch.device(given.get("device", "cpu")) != _CPU:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        if _is_gpu(given.get("device")):
            self._fake.current.launches += 1
            given["device"] = _CPU
        return func(*(_CPU if _is_gpu(each) else each for each in args), **given)


_CPU = torch.device("cpu")


def _is_gpu(given: object) -> bool:
    text = str(given) if isinstance(given, (str, torch.device)) else ""
    return text.partition(":")[0] == "cuda"


class Torch211:
    """What stands in for torch.cuda, and what was done to it."""

    def __init__(self, *, ends_refused: bool = False) -> None:
        """``ends_refused``: a refused capture sends allocations to its pool no more, as in 2.12."""
        self.ends_refused = ends_refused
        self.memory = Memory()
        self.streams: list[FakeStream] = []
        self.capturing: FakeGraph | None = None
        self.counts_for_a_graph = False  # the generator of random numbers
        self.current = self.new_stream()
        self.registered: list[range] = []
        self._names = iter(range(1, 1 << 30))

    def new_stream(self, *_: object, **__: object) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(
        self,
        graph: FakeGraph,
        stream: FakeStream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        with self.stream(stream or self.new_stream()):
            graph.capture_begin((next(self._names), 0), capture_error_mode)
            yield
            graph.capture_end()

    def synchronize(self, _: object = None) -> None:
        if self.capturing:
            self.capturing.refuse()

    def register(self, address: int, size_bytes: int, _: int) -> int:
        """``cudaHostRegister``: 712 if some of the memory is registered."""
        asked = range(address, address + size_bytes)
        if any(asked.start < held.stop and held.start < asked.stop for held in self.registered):
            return 712
        self.registered.append(asked)
        return 0

    def replacements(self) -> dict[str, Callable[..., object]]:
        """By their names in torch.cuda."""
        properties = SimpleNamespace(multi_processor_count=132)
        runtime = SimpleNamespace(cudaHostRegister=self.register)
        return {
            "set_device": lambda _: None,
            "get_device_properties": lambda _: properties,
            "Stream": self.new_stream,
            "Event": lambda enable_timing=False: FakeEvent(self, enable_timing),
            "set_stream": self.set_stream,
            "current_stream": lambda: self.current,
            "stream": self.stream,
            "graph": self.graph,
            "synchronize": self.synchronize,
            "is_current_stream_capturing": lambda: self.current.capturing is not None,
            "graph_pool_handle": lambda: (0, next(self._names)),
            "CUDAGraph": lambda: FakeGraph(self),
            "memory_stats_as_nested_dict": lambda _: {},
            "mem_get_info": lambda *_: (139 << 30, 140 << 30),
            "reset_peak_memory_stats": lambda _: None,
            "empty_cache": self.memory.empty_cache,
            "_sleep": lambda _: None,
            "cudart": lambda: runtime,
            "check_error": check_error,
        }

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch211]:
        for name, function in self.replacements().items():
            monkeypatch.setattr(torch.cuda, name, function, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.memory.end)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.memory.release)
        with OnCpu(self):
            yield self
