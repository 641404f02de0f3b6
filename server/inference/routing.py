"""One version of a model on all devices that serve it, and which of them takes a request.

    request ──> the device, of those that are up, where it is expected to end first ──> its queue

What is expected comes from each device's latency table, which begins with the schedules' measured
latencies and follows what batches really take (docs/decisions/0020-several-devices.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest


class Replicas:
    """At least one replica, of each device at most one. Belongs to the event loop."""

    def __init__(self, batchers: Mapping[str, Batcher]) -> None:
        self._batchers = batchers
        self._on: dict[str, ModelReplica] = {}

    def __iter__(self) -> Iterator[ModelReplica]:
        return iter(self._on.values())

    def __bool__(self) -> bool:
        return bool(self._on)

    @property
    def any(self) -> ModelReplica:
        """One of them: what callers see of a model is the same on all devices."""
        return next(iter(self._on.values()))

    def on(self, device: str) -> ModelReplica | None:
        """The replica on one device."""
        return self._on.get(device)

    def add(self, served: ModelReplica) -> None:
        """One more device serves."""
        self._on[served.device.name] = served

    def remove(self, device: str) -> ModelReplica:
        """Remove and return the replica of one device."""
        return self._on.pop(device)

    def choose(self, request: CheckedRequest) -> ModelReplica:
        """The replica that takes a request; a full queue comes after one with room.

        If no device is up it is the first one, which says so.
        """
        if len(self._on) == 1:
            return self.any

        def place(served: ModelReplica) -> tuple[bool, float]:
            batcher = self._batchers[served.device.name]
            return batcher.refusal(served) is not None, batcher.expected_s(served, request)

        up = [served for served in self._on.values() if served.device.answers]
        return min(up, key=place, default=self.any)
