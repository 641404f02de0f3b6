"""Measurements that outlive a search: per device and stage signature, for every model and batch.

planner ──> StoredCost ──known?──> MeasurementStore      (the server's is its database)
                └──no──> StageCost, then stored
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from core.schedule import Stage
from scheduler.cost import StageCost
from scheduler.signature import stage_signature
from scheduler.units import UnitGraph


class MeasurementStore(Protocol):
    """Latencies by device key and stage signature."""

    def get(self, device_key: str, signature: str) -> float | None:
        """The stored latency in microseconds, if there is one."""
        ...

    def put(self, device_key: str, signature: str, latency_us: float) -> None:
        """Store a latency, in place of the one stored before."""
        ...


@dataclass(slots=True)
class MemoryStore:
    """A store that lasts as long as the process."""

    latency_us: dict[tuple[str, str], float] = field(default_factory=dict)

    def get(self, device_key: str, signature: str) -> float | None:
        """The stored latency in microseconds, if there is one."""
        return self.latency_us.get((device_key, signature))

    def put(self, device_key: str, signature: str, latency_us: float) -> None:
        """Store a latency."""
        self.latency_us[device_key, signature] = latency_us


@dataclass(slots=True)
class StoredCost:
    """A StageCost that measures nothing twice on one device, not even for another model."""

    cost: StageCost
    store: MeasurementStore
    device_key: str
    units: UnitGraph
    measured: int = 0
    reused: int = 0

    def stage_latency_us(self, stage: Stage) -> float:
        """The stored latency; measured and stored if there is none."""
        signature = stage_signature(self.units, stage)
        latency = self.store.get(self.device_key, signature)
        if latency is not None:
            self.reused += 1
            return latency
        latency = self.cost.stage_latency_us(stage)
        self.store.put(self.device_key, signature, latency)
        self.measured += 1
        return latency
