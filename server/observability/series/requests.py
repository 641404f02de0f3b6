"""Series of requests, batches and queues of each model, and of the memory of calls.

Requests and batches count in plain numbers, and each scrape makes the families of these: there are
a thousand requests to a scrape.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from braid.server.inference.call_memory import CallMemory

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
"""Bounds of the buckets of durations."""
ROWS = tuple(float(2**power) for power in range(11))

MODEL = ("model", "version")
REPLICA = (*MODEL, "device")


class Distribution:
    """Values by bucket: those up to a bound and over the one before it."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Return for each upper bound, infinity among them, how many values are not over it."""
        return list(zip((*self._bounds, math.inf), accumulate(self._counts), strict=True))


@dataclass(slots=True)
class Duration:
    """Number of events, and the sum of the durations in nanoseconds."""

    count: int = 0
    ns: int = 0

    @staticmethod
    def of(durations: Iterable[Distribution]) -> Duration:
        each = list(durations)
        return Duration(sum(one.count for one in each), round(sum(one.sum for one in each) * 1e9))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sums of one model version at one moment."""

    success: Duration
    fail: Duration
    queue: Duration  # of requests that were computed
    prepare: Duration  # of those that waited for it
    compute: Duration  # of requests that were computed
    rows: int  # of all batches, without padding
    batches: int
    by_batch_size: dict[int, Duration]  # time on the device
    last_request_unix_ms: int
    waiting_requests: int  # now


_durations = partial(Distribution, SECONDS)
_rows = partial(Distribution, ROWS)


@dataclass(slots=True)
class ReplicaMetrics:
    """Numbers of one model version on one device, set by its queue and batches."""

    labels: tuple[str, ...]
    waiting_requests: int = 0
    waiting_rows: int = 0
    queue_seconds: Distribution = field(default_factory=_durations)
    prepare_seconds: Distribution = field(default_factory=_durations)
    compute_seconds: Distribution = field(default_factory=_durations)
    rows: Distribution = field(default_factory=_rows)
    batch_sizes: Distribution = field(default_factory=_rows)
    by_batch_size: dict[int, Duration] = field(default_factory=dict)  # time on the device

    def request_computed(
        self, queue_seconds: float, compute_seconds: float, prepare_seconds: float = 0.0
    ) -> None:
        self.queue_seconds.add(queue_seconds)
        if prepare_seconds:
            self.prepare_seconds.add(prepare_seconds)
        self.compute_seconds.add(compute_seconds)

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        self.batch_sizes.add(batch_size)
        self.rows.add(rows)
        spent = self.by_batch_size.get(batch_size)
        if spent is None:
            spent = self.by_batch_size[batch_size] = Duration()
        spent.count += 1
        spent.ns += compute_us * 1000

    def queue_is(self, requests: int, rows: int) -> None:
        self.waiting_requests, self.waiting_rows = requests, rows


class ModelMetrics:
    """Numbers of one model version, looked up once and not for each request.

    After ``Metrics.remove_model`` late requests still report to it; the reports are not exported.
    """

    def __init__(self, model: str, version: str) -> None:
        self.labels = (model, version)
        self.outcomes: dict[str, int] = {}  # requests by the name of their gRPC status
        self.duration_seconds = Distribution(SECONDS)
        self._success_seconds = 0.0
        self._last_request_unix_ms = 0
        self._replicas: dict[str, ReplicaMetrics] = {}

    @property
    def replicas(self) -> list[ReplicaMetrics]:
        return list(self._replicas.values())

    @property
    def waiting_requests(self) -> int:
        return sum(replica.waiting_requests for replica in self.replicas)

    @property
    def statistics(self) -> Statistics:
        replicas, successes = self.replicas, self.outcomes.get("OK", 0)
        failures = sum(count for outcome, count in list(self.outcomes.items()) if outcome != "OK")
        fail_seconds = self.duration_seconds.sum - self._success_seconds if failures else 0.0
        by_size: dict[int, Duration] = {}
        for replica in replicas:
            for size, spent in list(replica.by_batch_size.items()):
                so_far = by_size.setdefault(size, Duration())
                so_far.count += spent.count
                so_far.ns += spent.ns
        return Statistics(
            success=Duration(successes, round(self._success_seconds * 1e9)),
            fail=Duration(failures, round(fail_seconds * 1e9)),
            queue=Duration.of(replica.queue_seconds for replica in replicas),
            prepare=Duration.of(replica.prepare_seconds for replica in replicas),
            compute=Duration.of(replica.compute_seconds for replica in replicas),
            rows=round(sum(replica.rows.sum for replica in replicas)),
            batches=sum(replica.rows.count for replica in replicas),
            by_batch_size=by_size,
            last_request_unix_ms=self._last_request_unix_ms,
            waiting_requests=self.waiting_requests,
        )

    def on(self, device: str) -> ReplicaMetrics:
        replica = self._replicas.get(device)
        if replica is None:
            replica = self._replicas[device] = ReplicaMetrics((*self.labels, device))
        return replica

    def request_ended(self, outcome: str, total_seconds: float) -> None:
        """Count one request that ended; ``outcome`` is the name of its gRPC status."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.duration_seconds.add(total_seconds)
        if outcome == "OK":
            self._success_seconds += total_seconds
        self._last_request_unix_ms = time.time_ns() // 1_000_000


_OF_RUNS: tuple[tuple[str, str, Callable[[ReplicaMetrics], Distribution]], ...] = (
    ("braid_request_queue_seconds", "From accepted to sent to the device, without preparing",
     lambda replica: replica.queue_seconds),
    ("braid_request_prepare_seconds",
     "Until shapes that are new to the device were prepared, of requests that had to wait",
     lambda replica: replica.prepare_seconds),
    ("braid_request_compute_seconds", "On the device, copies included",
     lambda replica: replica.compute_seconds),
    ("braid_batch_rows", "Rows of a batch that belonged to requests",
     lambda replica: replica.rows),
    ("braid_batch_size_rows", "Rows of a batch, padding included",
     lambda replica: replica.batch_sizes),
)  # fmt: skip
"""Histograms of a model on a device: name, help text and values."""

_OF_QUEUES: tuple[tuple[str, str, Callable[[ReplicaMetrics], int]], ...] = (
    ("braid_queue_depth_requests", "Requests waiting for the device now",
     lambda replica: replica.waiting_requests),
    ("braid_queue_depth_rows", "Rows waiting for the device now",
     lambda replica: replica.waiting_rows),
)  # fmt: skip
"""Gauges of a model on a device: name, help text and value."""


class RequestMetrics(Collector):
    """Metric families of requests, batches and queues, for all models.

    Models without runs on a device have no histograms of that device, nine tenths of all series: of
    a thousand models most are asked seldom.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queue_limit = Gauge(
            "braid_queue_limit_requests", "Requests that may wait for one model", registry=registry
        )
        self.models: dict[tuple[str, str], ModelMetrics] = {}  # that are exported, by their labels
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        models = list(self.models.values())
        replicas = [replica for model in models for replica in model.replicas]
        ended = [
            ((*model.labels, outcome), count)
            for model in models
            for outcome, count in list(model.outcomes.items())
        ]
        text, labels = "Requests that ended, by gRPC status", (*MODEL, "outcome")
        yield family("braid_requests", text, labels, ended, kind=CounterMetricFamily)
        durations = [(model.labels, model.duration_seconds) for model in models]
        what = "From accepted to answered"
        yield _histogram("braid_request_duration_seconds", what, MODEL, durations)
        for name, text, values_of in _OF_RUNS:
            runs = [(replica.labels, values_of(replica)) for replica in replicas]
            ran = [(labels, values) for labels, values in runs if values.count]
            yield _histogram(name, text, REPLICA, ran)
        for name, text, value_of in _OF_QUEUES:
            waiting = [(replica.labels, value_of(replica)) for replica in replicas]
            yield family(name, text, REPLICA, waiting)


Family = GaugeMetricFamily | CounterMetricFamily


def family(
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float | None]],
    *,
    kind: type[Family] = GaugeMetricFamily,
) -> Metric:
    """Make a family; what is None has no sample."""
    made = kind(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            made.add_metric(values, float(value))
    return made


def _histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    series: Iterable[tuple[tuple[str, ...], Distribution]],
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, distribution in series:
        buckets = [("+Inf" if le == math.inf else str(le), n) for le, n in distribution.buckets()]
        family.add_metric(values, buckets, distribution.sum)
    return family


def watch_calls(registry: CollectorRegistry, memory: CallMemory) -> None:
    """Export the memory that calls hold, in bytes at the time of each scrape."""
    gauge = partial(Gauge, registry=registry)
    held = gauge("braid_calls_memory_bytes", "Requests under way and answers not read yet")
    held.set_function(lambda: memory.held_bytes)
    unread = gauge("braid_unread_answer_bytes", "Answers computed that callers have not read yet")
    unread.set_function(lambda: memory.unread_bytes)
