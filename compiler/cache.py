"""Measurements that outlive a compilation, by what they are of. Whoever compiles keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from braid.core.measurement import StageLatency
from braid.core.quantisation import Quantisation


class Cache(Protocol):
    """Measurements of one device, and what earlier compilations of one model found.

    Any call may raise what its store raises, which ends the compilation.
    """

    async def find_latencies(self, signatures: Sequence[str]) -> Mapping[str, float]:
        """Latencies in microseconds of those ``signatures`` that were measured before."""

    async def all_latencies(self) -> Mapping[str, float]:
        """Latencies in microseconds of all that was measured on the device, by signature."""

    async def keep_latencies(self, latencies: Mapping[str, StageLatency]) -> None:
        """Keep latencies by signature, in place of earlier ones."""

    async def find_quantisation(self) -> Quantisation | None:
        """How an earlier schedule of the same model and options computes on 8-bit integers."""
