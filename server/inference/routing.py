"""One version of a model on all devices that serve it, and the choice of one for each request.

What is expected comes from each device's latency table, which begins with the schedules' measured
latencies and follows what batches really take (docs/decisions/0020-several-devices.md).
"""

from dataclasses import dataclass
from time import monotonic

from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest
from braid.server.inference.strikes import Strikes


@dataclass(frozen=True, slots=True, eq=False)
class QueuedReplica:
    """Replica, and the queues of its device."""

    replica: ModelReplica
    batcher: Batcher

    async def end(self) -> None:
        """Finish the accepted requests, then drop the queue and unload the replica."""
        await self.batcher.drain(self.replica)
        self.batcher.forget(self.replica)
        await self.replica.close()


class Replicas:
    """Replicas of one version, at most one on each device. Belongs to the event loop."""

    def __init__(self) -> None:
        self.all: tuple[QueuedReplica, ...] = ()
        self.used_at = monotonic()
        """When a request named the version last, on the monotonic clock."""
        self.strikes = Strikes()

    @property
    def any(self) -> ModelReplica:
        """First replica: callers see the same inputs and outputs on all devices."""
        return self.all[0].replica

    def on(self, device: str) -> ModelReplica | None:
        replicas = (queued.replica for queued in self.all)
        return next((replica for replica in replicas if replica.device.name == device), None)

    def add(self, queued: QueuedReplica) -> None:
        queued.replica.strikes = self.strikes
        self.all = (*self.all, queued)

    def remove(self, device: str) -> QueuedReplica:
        (removed,) = (queued for queued in self.all if queued.replica.device.name == device)
        self.all = tuple(queued for queued in self.all if queued is not removed)
        return removed

    def choose(self, request: CheckedRequest) -> QueuedReplica:
        """Return the replica that takes a request; a full queue comes after one with room.

        If no device is up it is the first one, which says so.
        """
        if len(self.all) == 1:
            return self.all[0]

        def place(queued: QueuedReplica) -> tuple[bool, float]:
            batcher, replica = queued.batcher, queued.replica
            return batcher.refusal(replica) is not None, batcher.expected_s(replica, request)

        up = [queued for queued in self.all if queued.replica.device.answers]
        return min(up, key=place, default=self.all[0])
