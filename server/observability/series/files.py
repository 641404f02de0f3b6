"""Series of shared files: what the cache holds, and what goes between it and the shared place.

Only servers that share their files (BRAID_FILES) have them.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

KINDS = ("uploads", "samples", "artefacts")
SOURCES = ("cache", "shared", "nowhere")
OPERATIONS = ("put", "fetch", "sweep")


class FileMetrics:
    """Series of shared files: a ``braid.server.store.shared_files.interface.FilesObserver``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.cache_bytes = gauge("braid_fleet_cache_bytes", "Files in the cache of shared files")
        self.cache_files = gauge(
            "braid_fleet_cache_files", "Number of files and artefacts in the cache"
        )
        self.evictions = counter(
            "braid_fleet_cache_evictions", "Files that left the cache to make room"
        )
        self.fetches = counter(
            "braid_fleet_fetches", "Shared files asked for, by where they were", ("kind", "source")
        )
        self.fetched_bytes = counter("braid_fleet_fetched_bytes", "Bytes fetched into the cache")
        self.puts = counter("braid_fleet_puts", "Files put into the shared place", ("kind",))
        self.put_bytes = counter("braid_fleet_put_bytes", "Bytes put into the shared place")
        self.failures = counter(
            "braid_fleet_file_failures", "Puts, fetches and sweeps that failed", ("operation",)
        )
        self.damages = counter(
            "braid_fleet_damaged_files", "Objects and cached files that were not what was put"
        )
        self.sweeps = counter("braid_fleet_sweeps", "Sweeps of the shared place by this server")
        self.removed = counter("braid_fleet_objects_removed", "Objects that sweeps removed")
        for kind in KINDS:  # rates need the zeros
            self.puts.labels(kind)
            for source in SOURCES:
                self.fetches.labels(kind, source)
        for operation in OPERATIONS:
            self.failures.labels(operation)

    def cache_is(self, size_bytes: int, count: int) -> None:
        """Set the bytes and the number of files and artefacts in the cache."""
        self.cache_bytes.set(size_bytes)
        self.cache_files.set(count)

    def evicted(self, size_bytes: int) -> None:
        """Count a file that left the cache."""
        self.evictions.inc()

    def fetched(self, kind: str, source: str, size_bytes: int) -> None:
        """Count a file that was asked for, and where it came from."""
        self.fetches.labels(kind, source).inc()
        self.fetched_bytes.inc(size_bytes)

    def put(self, kind: str, size_bytes: int) -> None:
        """Count a file that was put into the shared place."""
        self.puts.labels(kind).inc()
        self.put_bytes.inc(size_bytes)

    def failed(self, operation: str) -> None:
        """Count a put, fetch or sweep that failed."""
        self.failures.labels(operation).inc()

    def damaged(self) -> None:
        """Count an object or a file in the cache that was not what it should be."""
        self.damages.inc()

    def swept(self, count: int) -> None:
        """Count a sweep of the shared place, and the objects that it removed."""
        self.sweeps.inc()
        self.removed.inc(count)
