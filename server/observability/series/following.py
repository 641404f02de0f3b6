"""Series of a node that follows what other nodes of its fleet change."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class FollowMetrics:
    """Series of looks at the database and of what came of them. Only where servers share one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag = Gauge(
            "braid_fleet_follow_lag_seconds",
            "From the last change that another node made to the moment this node had applied it",
            registry=registry,
        )
        self.looks = Counter(
            "braid_fleet_reconciliations",
            "Looks at what the database says that this node serves",
            registry=registry,
        )
        self.failures = Counter(
            "braid_fleet_reconciliation_failures",
            "Looks without an answer of the database, and changes that could not be applied then",
            registry=registry,
        )
        self.off_speed = Counter(
            "braid_fleet_schedules_off_speed",
            "Schedules of other nodes that run more than 25 % slower or faster here",
            ("device",),
            registry=registry,
        )

    def add_device(self, device: str) -> None:
        """Make the series of a device, so that they begin at zero."""
        self.off_speed.labels(device)

    def looked(self, is_done: bool) -> None:
        """Count one look at the database, and whether it answered."""
        self.looks.inc()
        if not is_done:
            self.failures.inc()

    def applied(self, lag_s: float | None) -> None:
        """Take the seconds from a change to its end here; None: when it was made is not known."""
        if lag_s is not None:
            self.lag.set(lag_s)

    def failed(self) -> None:
        """Count changes that could not be applied now."""
        self.failures.inc()

    def is_off_speed(self, device: str) -> None:
        """Count a schedule of another node that runs slower or faster on a device here."""
        self.off_speed.labels(device).inc()
