"""torch.cuda as of 2.11, as far as ``TorchDriver`` uses it, on a CPU: its rules for captures.

Taken from torch's sources: what a capture changes in the allocators of device and pinned memory,
what ends it, what a refused one leaves behind, and who may begin a capture into which pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

Name = tuple[int, int]


class Refused(RuntimeError):
    """What torch.AcceleratorError is like for a capture that CUDA refuses."""

    error_code = 900


@dataclass(eq=False)
class FakeStream:
    """Work in order; in a capture once it waits for an event of one."""

    capturing: FakeGraph | None = None
    waited_for: set[FakeStream] = field(default_factory=set)  # in this capture
    launches: int = 0  # kernels, in captures or not
    captures: int = 0  # that began here


@dataclass(eq=False)
class FakeEvent:
    """A point in a stream."""

    capturing: FakeGraph | None = None
    after: set[FakeStream] = field(default_factory=set)

    def record(self, stream: FakeStream) -> None:
        self.capturing, self.after = stream.capturing, {stream, *stream.waited_for}

    def wait(self, stream: FakeStream) -> None:
        stream.capturing = self.capturing or stream.capturing
        stream.waited_for |= self.after


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


class FakeGraph:
    """One capture."""

    def __init__(self, fake: Torch211) -> None:
        self._fake = fake
        self._stream: FakeStream | None = None
        self._name: Name = (0, 0)
        self._has_ended = False
        self.is_invalid = False

    def capture_begin(self, pool: Name, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self._stream, self._name = self._fake.current, pool
        self._fake.memory.begin(pool)
        self._stream.capturing = self
        self._stream.captures += 1

    def capture_end(self) -> None:
        stream = self._stream
        assert stream is not None
        if self._fake.current is not stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        loose = {s for s in self._fake.streams if s.capturing is self} - {
            stream,
            *stream.waited_for,
        }
        for each in self._fake.streams:
            each.capturing = None
            each.waited_for.clear()
        if self.is_invalid or loose:
            raise Refused("operation failed due to a previous error during capture")
        self._fake.memory.end(0, self._name)
        self._fake.memory.to_pinned_pool.remove(self._name)
        self._has_ended = True

    def replay(self) -> None:
        assert self._has_ended

    def reset(self) -> None:
        if self._has_ended:
            self._fake.memory.release(0, self._name)
        self._has_ended = False


class _OnCpu(TorchFunctionMode):
    """Tensors for the GPU are made on the CPU; each one counts as a launch."""

    def __init__(self, fake: Torch211) -> None:
        super().__init__()
        self._fake = fake

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if (
            given.pop("pin_memory", False)
            and torch.device(given.get("device", "cpu")).type != "cpu"
        ):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        if getattr(given.get("device"), "type", "") == "cuda":
            self._fake.current.launches += 1
            given["device"] = "cpu"
        return func(*args, **given)


class Torch211:
    """What stands in for torch.cuda, and what was done to it."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.streams: list[FakeStream] = []
        self._names = iter(range(1, 1000))
        self.current = self.new_stream()

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

    def is_capturing(self) -> bool:
        return self.current.capturing is not None

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch211]:
        """In the place of torch.cuda."""
        replaced: dict[str, Callable[..., object]] = {
            "set_device": lambda _: None,
            "get_device_properties": lambda _: SimpleNamespace(multi_processor_count=132),
            "Stream": self.new_stream,
            "Event": lambda **_: FakeEvent(),
            "set_stream": self.set_stream,
            "stream": self.stream,
            "synchronize": lambda _: None,
            "is_current_stream_capturing": self.is_capturing,
            "graph_pool_handle": lambda: (0, next(self._names)),
            "CUDAGraph": lambda: FakeGraph(self),
            "empty_cache": self.memory.empty_cache,
        }
        for name, function in replaced.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.memory.end)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.memory.release)
        with _OnCpu(self):
            yield self
