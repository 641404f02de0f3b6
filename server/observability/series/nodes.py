"""Series of a node's leases, and of the nodes that share its database."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class NodeMetrics:
    """Series of leases and nodes. Only where servers share a database."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._held = Gauge(
            "braid_fleet_leases_held", "Leases that this node holds", registry=registry
        )
        self._alive = Gauge(
            "braid_fleet_nodes", "Nodes that share the database and live", registry=registry
        )
        self._lost = Counter(
            "braid_fleet_leases_lost", "Leases that other nodes took over", registry=registry
        )
        self._refused = Counter(
            "braid_fleet_writes_refused",
            "Writes that were refused, as another node had the lease",
            registry=registry,
        )
        self._taken_over = Counter(
            "braid_fleet_takeovers",
            "Jobs that this node took over from others",
            registry=registry,
        )

    def leases_held(self, count: int) -> None:
        """Set the number of leases that this node holds."""
        self._held.set(count)

    def nodes_alive(self, count: int) -> None:
        """Set the number of nodes that live."""
        self._alive.set(count)

    def lease_lost(self) -> None:
        """Count a lease that another node has taken over."""
        self._lost.inc()

    def write_refused(self) -> None:
        """Count a write that was refused, as another node has the lease."""
        self._refused.inc()

    def taken_over(self) -> None:
        """Count a job that was taken over from another node."""
        self._taken_over.inc()
