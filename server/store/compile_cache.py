"""The store as the cache of compilations: ``braid.compiler.cache.Cache`` over its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braid.core.measurement import StageLatency
from braid.core.quantisation import Quantisation
from braid.server.store.store import Store


class StoreCache:
    """Measurements on one device, and what schedules of one model tell."""

    def __init__(self, store: Store, device_key: str, schedule_ids: Sequence[str] = ()) -> None:
        """Look at nothing yet; ``schedule_ids`` are of all schedules of the model."""
        self._store = store
        self._device_key = device_key
        self._schedule_ids = schedule_ids

    async def find_latencies(self, signatures: Sequence[str]) -> Mapping[str, float]:
        """Latencies in microseconds of those ``signatures`` that were measured before."""
        store = self._store
        return await store.call(store.find_latencies, self._device_key, signatures)

    async def all_latencies(self) -> Mapping[str, float]:
        """Latencies in microseconds of all that was measured on the device, by signature."""
        return await self._store.call(self._store.all_latencies, self._device_key)

    async def keep_latencies(self, latencies: Mapping[str, StageLatency]) -> None:
        """Keep latencies by signature, in place of earlier ones; all of them or none."""
        await self._store.call(self._store.put_latencies, self._device_key, latencies)

    async def find_quantisation(self) -> Quantisation | None:
        """Quantisation of any schedule of the same model and options."""
        for schedule_id in self._schedule_ids:
            schedule = await self._store.call(self._store.find_schedule, schedule_id)
            if schedule is not None and schedule.provenance.quantisation is not None:
                return schedule.provenance.quantisation
        return None
