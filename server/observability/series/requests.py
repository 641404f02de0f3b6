"""Series of requests, batches and queues of each model, and of the memory of calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from braid.server.inference.call_memory import CallMemory

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
"""Bounds of the buckets of durations."""
ROWS = tuple(float(2**power) for power in range(11))

MODEL = ("model", "version")
REPLICA = (*MODEL, "device")


@dataclass(slots=True)
class Duration:
    """Number of events, and the sum of the durations in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * 1e9)


@dataclass(slots=True)
class Statistics:
    """Sums of one model version. Belongs to the event loop."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)  # of requests that were computed
    prepare: Duration = field(default_factory=Duration)  # of those that waited for it
    compute: Duration = field(default_factory=Duration)  # of requests that were computed
    rows: int = 0  # of all batches, without padding
    batches: int = 0
    by_batch_size: dict[int, Duration] = field(default_factory=dict)  # time on the device
    last_request_unix_ms: int = 0

    def request_ended(self, ok: bool, seconds: float) -> None:
        (self.success if ok else self.fail).add(seconds)
        self.last_request_unix_ms = time.time_ns() // 1_000_000

    def request_computed(
        self, queue_seconds: float, compute_seconds: float, prepare_seconds: float
    ) -> None:
        self.queue.add(queue_seconds)
        if prepare_seconds:
            self.prepare.add(prepare_seconds)
        self.compute.add(compute_seconds)

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        self.batches += 1
        self.rows += rows
        self.by_batch_size.setdefault(batch_size, Duration()).add(compute_us / 1e6)


class RequestMetrics:
    """Metric families of requests, batches and queues, for all models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        duration = partial(Histogram, registry=registry, buckets=SECONDS)
        rows = partial(Histogram, registry=registry, buckets=ROWS)
        self.ended = counter(
            "braid_requests", "Requests that ended, by gRPC status", (*MODEL, "outcome")
        )
        self.duration_seconds = duration(
            "braid_request_duration_seconds", "From accepted to answered", MODEL
        )
        self.queue_seconds = duration(
            "braid_request_queue_seconds",
            "From accepted to sent to the device, without preparing",
            REPLICA,
        )
        self.prepare_seconds = duration(
            "braid_request_prepare_seconds",
            "Until shapes that are new to the device were prepared, of requests that had to wait",
            REPLICA,
        )
        self.compute_seconds = duration(
            "braid_request_compute_seconds", "On the device, copies included", REPLICA
        )
        self.batch_rows = rows(
            "braid_batch_rows", "Rows of a batch that belonged to requests", REPLICA
        )
        self.batch_size = rows(
            "braid_batch_size_rows", "Rows of a batch, padding included", REPLICA
        )
        self.queue_requests = gauge(
            "braid_queue_depth_requests", "Requests waiting for the device now", REPLICA
        )
        self.queue_rows = gauge(
            "braid_queue_depth_rows", "Rows waiting for the device now", REPLICA
        )
        self.queue_limit = gauge(
            "braid_queue_limit_requests", "Requests that may wait for one model"
        )

    def remove_model(self, model: str, version: str) -> None:
        labels = {"model": model, "version": version}
        for family in (
            self.ended, self.duration_seconds, self.queue_seconds, self.prepare_seconds,
            self.compute_seconds, self.batch_rows, self.batch_size, self.queue_requests,
            self.queue_rows,
        ):  # fmt: skip
            family.remove_by_labels(labels)


class _Histograms(NamedTuple):
    """Series of the runs of one model version on one device."""

    queue: Histogram
    compute: Histogram
    rows: Histogram
    size: Histogram


class ReplicaMetrics:
    """Series of one model version on one device, set by its queue and batches.

    Its histograms, nine tenths of all series, are made by its first run: of a thousand models most
    are asked seldom. Those of preparing are looked up each time, as it is rare.
    """

    def __init__(self, model: ModelMetrics, device: str) -> None:
        self.waiting_requests = 0
        self._model = model
        self._labels = (*model.labels, device)
        self._waiting_requests = model.families.queue_requests.labels(*self._labels)
        self._waiting_rows = model.families.queue_rows.labels(*self._labels)

    @cached_property
    def _runs(self) -> _Histograms:
        of = self._model.families
        families = of.queue_seconds, of.compute_seconds, of.batch_rows, of.batch_size
        return _Histograms(*(family.labels(*self._labels) for family in families))

    def request_computed(
        self, queue_seconds: float, compute_seconds: float, prepare_seconds: float = 0.0
    ) -> None:
        self._runs.queue.observe(queue_seconds)
        if prepare_seconds:
            prepare = self._model.families.prepare_seconds.labels(*self._labels)
            prepare.observe(prepare_seconds)
        self._runs.compute.observe(compute_seconds)
        self._model.statistics.request_computed(queue_seconds, compute_seconds, prepare_seconds)

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        self._model.statistics.batch_ran(batch_size, rows, compute_us)
        self._runs.size.observe(batch_size)
        self._runs.rows.observe(rows)

    def queue_is(self, requests: int, rows: int) -> None:
        self.waiting_requests = requests
        self._waiting_requests.set(requests)
        self._waiting_rows.set(rows)


class ModelMetrics:
    """Series of one model version, looked up once and not for each request.

    After ``Metrics.remove_model`` late requests still report to it; the reports are not exported.
    """

    def __init__(self, families: RequestMetrics, model: str, version: str) -> None:
        self.statistics = Statistics()
        self.families = families
        self.labels = (model, version)
        self._replicas: dict[str, ReplicaMetrics] = {}
        self._requests: dict[str, Counter] = {}
        self._total = families.duration_seconds.labels(*self.labels)

    @property
    def waiting_requests(self) -> int:
        return sum(replica.waiting_requests for replica in self._replicas.values())

    def on(self, device: str) -> ReplicaMetrics:
        replica = self._replicas.get(device)
        if replica is None:
            replica = self._replicas[device] = ReplicaMetrics(self, device)
        return replica

    def retire(self) -> None:
        """Make no further series of the exported families; those of the version were removed."""
        self.families = RequestMetrics(CollectorRegistry())

    def request_ended(self, outcome: str, total_seconds: float) -> None:
        """Count one request that ended; ``outcome`` is the name of its gRPC status."""
        counter = self._requests.get(outcome)
        if counter is None:
            counter = self.families.ended.labels(*self.labels, outcome)
            self._requests[outcome] = counter
        counter.inc()
        self._total.observe(total_seconds)
        self.statistics.request_ended(outcome == "OK", total_seconds)


class CallMetrics:
    """Memory that calls hold, in bytes at the time of each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.held_bytes = gauge(
            "braid_calls_memory_bytes", "Requests under way and answers not read yet"
        )
        self.unread_bytes = gauge(
            "braid_unread_answer_bytes", "Answers computed that callers have not read yet"
        )

    def watch(self, memory: CallMemory) -> None:
        """Export the bytes that ``memory`` holds."""
        self.held_bytes.set_function(lambda: memory.held_bytes)
        self.unread_bytes.set_function(lambda: memory.unread_bytes)
