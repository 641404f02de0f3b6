"""Measurements that outlive a compilation, by what they are of. Whoever compiles keeps them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ParamSpec, Protocol, TypeVar

from braid.core.measurement import StageLatency
from braid.core.quantisation import Quantisation
from braid.core.schedule import Schedule, ScheduleKey

P = ParamSpec("P")
T = TypeVar("T")


class StoredResults(Protocol):
    """Part of ``braid.compiler.results.Results`` that a compilation uses; its methods block."""

    def all_latencies(self, device_key: str, /) -> dict[str, float]: ...

    def put_latencies(self, device_key: str, latencies: Mapping[str, StageLatency], /) -> None: ...

    def find_schedule(self, key: ScheduleKey, /) -> Schedule | None: ...


class Call(Protocol):
    """Runs a function in another thread, as ``asyncio.to_thread`` does."""

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...


class Cache:
    """Measurements of one device, and what earlier compilations of one model found.

    The cache of one compilation: it reads the device's measurements once, then appends. Any call
    may raise what its store raises, which ends the compilation.
    """

    def __init__(
        self, results: StoredResults, call: Call, device_key: str, keys: Sequence[ScheduleKey] = ()
    ) -> None:
        """Look at nothing yet; ``keys`` are of all schedules of the model."""
        self._results = results
        self._call = call
        self._device_key = device_key
        self._keys = keys
        self._latencies_us: dict[str, float] | None = None

    async def all_latencies(self) -> Mapping[str, float]:
        """Latencies on the device in microseconds by signature, those measured last at the end."""
        if self._latencies_us is None:
            self._latencies_us = await self._call(self._results.all_latencies, self._device_key)
        return self._latencies_us

    async def find_latencies(self, signatures: Sequence[str]) -> Mapping[str, float]:
        """Latencies in microseconds of those ``signatures`` that were measured before."""
        latencies_us = await self.all_latencies()
        return {name: latencies_us[name] for name in signatures if name in latencies_us}

    async def keep_latencies(self, latencies: Mapping[str, StageLatency]) -> None:
        """Keep latencies by signature, in place of earlier ones."""
        await self._call(self._results.put_latencies, self._device_key, latencies)
        if self._latencies_us is not None:
            self._latencies_us |= {name: entry.latency_us for name, entry in latencies.items()}

    async def find_quantisation(self) -> Quantisation | None:
        """How an earlier schedule of the same model and options computes on 8-bit integers."""
        for key in self._keys:
            schedule = await self._call(self._results.find_schedule, key)
            if schedule is not None and schedule.provenance.quantisation is not None:
                return schedule.provenance.quantisation
        return None
