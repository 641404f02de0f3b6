"""A task that one node at a time has, for as long as it lives: sweeping the shared files.

asked, from time to time ──> the lease, renewed from then on ──> lost: another node has the task
"""

from __future__ import annotations

from braid.server.fleet.leases import Leases
from braid.server.store.records import Lease


class StandingTask:
    """A lease that this node keeps once it has it. Belongs to the event loop."""

    def __init__(self, leases: Leases, name: str) -> None:
        """Ask for nothing yet."""
        self._leases = leases
        self._name = name
        self._lease: Lease | None = None

    async def is_ours(self) -> bool:
        """True if this is the node that has the task; it takes the task that nobody has."""
        if self._lease is None:
            self._lease = await self._leases.acquire(self._name)
            if self._lease is not None:
                self._leases.hold(self._lease, self)
        return self._lease is not None

    def lapsed(self) -> None:
        """Go on: what a task does may be done twice."""

    def renewed(self) -> None:
        """Go on."""

    def lost(self) -> None:
        """Leave the task to another node."""
        self._lease = None
