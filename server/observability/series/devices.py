"""Series of devices: deaths of workers, by reason."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from braid.engine.link.options import EndReason


class DeviceMetrics:
    """Counters of device workers that died."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.worker_restarts = Counter(
            "braid_worker_restarts",
            "Device workers that died and were restarted, by why they died",
            ("device", "reason"),
            registry=registry,
        )

    def add_device(self, device: str) -> None:
        for reason in EndReason:
            self.worker_restarts.labels(device, reason.value)

    def worker_restarted(self, device: str, reason: EndReason) -> None:
        self.worker_restarts.labels(device, reason.value).inc()

    def restarts(self, device: str) -> float:
        (family,) = self.worker_restarts.collect()
        return sum(
            sample.value
            for sample in family.samples
            if sample.name.endswith("_total") and sample.labels["device"] == device
        )
