"""Series of registration jobs, and of devices: measurements, deaths of workers."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from braid.engine.link.options import EndReason

UPLOAD_BYTES = tuple(float(2**power) for power in range(16, 34, 2))
"""Bounds of the buckets of uploads: 64 KiB to 4 GiB."""


class JobMetrics:
    """Series of jobs, a ``braid.server.jobs.interfaces.JobObserver``, and of devices."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, labelnames=("device",), registry=registry)
        self.jobs = Gauge("braid_jobs", "Registration jobs by state", ("state",), registry=registry)
        self.measurements = counter("braid_stage_measurements", "Stages measured on a device")
        self.measurement_seconds = counter(
            "braid_stage_measurement_seconds", "Time spent measuring stages"
        )
        self.measurements_reused = counter(
            "braid_stage_measurements_reused", "Stage latencies found in the store"
        )
        self.refused = counter("braid_plans_refused", "Plans refused for wrong outputs")
        self.worker_restarts = counter(
            "braid_worker_restarts",
            "Device workers that died and were restarted, by why they died",
            labelnames=("device", "reason"),
        )
        self.cache = counter(
            "braid_schedule_cache_lookups", "Schedule cache look-ups", labelnames=("result",)
        )
        self.uploads = Histogram(
            "braid_upload_bytes",
            "Sizes of model files that arrived whole",
            registry=registry,
            buckets=UPLOAD_BYTES,
        )
        for result in ("hit", "miss"):
            self.cache.labels(result)  # a rate needs the zero

    def add_device(self, device: str) -> None:
        for counter in (
            self.measurements, self.measurement_seconds, self.measurements_reused, self.refused,
        ):  # fmt: skip
            counter.labels(device)
        for reason in EndReason:
            self.worker_restarts.labels(device, reason.value)

    def jobs_counted(self, by_state: Mapping[str, int]) -> None:
        for state, count in by_state.items():
            self.jobs.labels(state).set(count)

    def stage_measured(self, device: str, seconds: float) -> None:
        self.measurements.labels(device).inc()
        self.measurement_seconds.labels(device).inc(seconds)

    def stages_reused(self, device: str, count: int) -> None:
        self.measurements_reused.labels(device).inc(count)

    def plans_refused(self, device: str, count: int) -> None:
        self.refused.labels(device).inc(count)

    def schedule_looked_up(self, hit: bool) -> None:
        self.cache.labels("hit" if hit else "miss").inc()
