"""Metrics of a fleet. Only servers that share a database have them."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

KINDS = ("uploads", "samples", "artefacts")
SOURCES = ("cache", "shared", "nowhere")
OPERATIONS = ("put", "fetch", "sweep")


class NodeMetrics:
    """Leases and nodes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.held = gauge("braid_fleet_leases_held", "Leases that this node holds")
        self.alive = gauge("braid_fleet_nodes", "Nodes that share the database and live")
        self.lost = counter("braid_fleet_leases_lost", "Leases that other nodes took over")
        self.refused = counter(
            "braid_fleet_writes_refused", "Writes that were refused, as another node had the lease"
        )
        self.takeovers = counter(
            "braid_fleet_takeovers", "Jobs that this node took over from others"
        )


class FollowMetrics:
    """Looks at the database, and what came of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Gauge(
            "braid_fleet_follow_lag_seconds",
            "From the last change that another node made to the moment this node had applied it",
            registry=registry,
        )
        self._looks = Counter(
            "braid_fleet_reconciliations",
            "Looks at what the database says that this node serves",
            registry=registry,
        )
        self._failures = Counter(
            "braid_fleet_reconciliation_failures",
            "Looks without an answer of the database, and changes that could not be applied then",
            registry=registry,
        )

    def looked(self, is_done: bool) -> None:
        self._looks.inc()
        if not is_done:
            self._failures.inc()

    def applied(self, lag_s: float | None) -> None:
        """Take the seconds from a change to its end here; None: when it was made is not known."""
        if lag_s is not None:
            self._lag.set(lag_s)

    def failed(self) -> None:
        self._failures.inc()


class FileMetrics:
    """What the cache holds, and what goes between it and the shared place."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.cache_bytes = gauge("braid_fleet_cache_bytes", "Files in the cache of shared files")
        self.cache_files = gauge(
            "braid_fleet_cache_files", "Number of files and artefacts in the cache"
        )
        self.evictions = counter(
            "braid_fleet_cache_evictions", "Files that left the cache to make room"
        )
        self._fetches = counter(
            "braid_fleet_fetches", "Shared files asked for, by where they were", ("kind", "source")
        )
        self._fetched_bytes = counter("braid_fleet_fetched_bytes", "Bytes fetched into the cache")
        self._puts = counter("braid_fleet_puts", "Files put into the shared place", ("kind",))
        self._put_bytes = counter("braid_fleet_put_bytes", "Bytes put into the shared place")
        self.failures = counter(
            "braid_fleet_file_failures", "Puts, fetches and sweeps that failed", ("operation",)
        )
        self.damages = counter(
            "braid_fleet_damaged_files", "Objects and cached files that were not what was put"
        )
        self.sweeps = counter("braid_fleet_sweeps", "Sweeps of the shared place by this server")
        self.removed = counter("braid_fleet_objects_removed", "Objects that sweeps removed")
        for kind in KINDS:  # rates need the zeros
            self._puts.labels(kind)
            for source in SOURCES:
                self._fetches.labels(kind, source)
        for operation in OPERATIONS:
            self.failures.labels(operation)

    def fetched(self, kind: str, source: str, size_bytes: int) -> None:
        self._fetches.labels(kind, source).inc()
        self._fetched_bytes.inc(size_bytes)

    def put(self, kind: str, size_bytes: int) -> None:
        self._puts.labels(kind).inc()
        self._put_bytes.inc(size_bytes)
