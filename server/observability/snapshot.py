"""Gauges of what is there when a scrape comes: readiness, models, shapes, memory, disk.

Nothing is counted in between, so that requests and registrations pay nothing for it.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from braid.core.allowance import Throttling, throttling
from braid.engine.link.messages import ModelMemory
from braid.server.devices.device import Device
from braid.server.inference.replica import ModelReplica
from braid.server.observability.series.requests import Family, family
from braid.server.store.quota import size_on_disk
from braid.server.store.records import ModelStatus, ModelVersion

DISK_SECONDS = 60.0
"""Least time between two looks at all files of the store."""


@dataclass(frozen=True, slots=True)
class ContestCounts:
    """Contest of the plans of a version for one batch size of its main shape on a device."""

    labels: tuple[str, ...]  # model, version, device, batch size
    runs: Mapping[str, int]  # batches by plan
    is_open: bool
    estimated_loss: float  # part of the time of requests


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the server at one moment."""

    is_ready: bool = False
    versions: Sequence[tuple[ModelVersion, bool]] = ()  # each with whether it answers
    devices: Sequence[tuple[Device, Mapping[str, ModelMemory]]] = ()  # of models, by digest
    replicas: Sequence[ModelReplica] = ()
    contests: Sequence[ContestCounts] = ()
    loaded: Collection[tuple[str, int]] = ()  # versions in memory, by name and number
    budget_bytes: int = 0  # of memory; 0: not known
    cpus: float = 0.0  # that it may use; 0: not known


@dataclass(frozen=True, slots=True)
class _Measured:
    """Bytes read from the system, as far as they can be read."""

    processes: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by device and role
    store: int | None = None
    free: int | None = None
    throttled: Throttling = field(default_factory=Throttling)


class SnapshotGauges(Collector):
    """Collector of the gauges; exports what the last ``look`` and ``read`` found."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Export nothing but zeros before ``watch``."""
        self._clock = clock
        self._now: Callable[[], Snapshot] = Snapshot
        self._store: Path | None = None
        self._store_limit_bytes = 0
        self._snapshot = Snapshot()
        self._measured = _Measured()
        self._looked_at_disk: float | None = None

    def watch(self, now: Callable[[], Snapshot], store: Path, store_limit_bytes: int = 0) -> None:
        """Export what ``now`` returns and the size of a store; a limit of 0 bytes is none."""
        self._now, self._store, self._store_limit_bytes = now, store, store_limit_bytes

    def look(self) -> None:
        """Take what the server knows now; called on the event loop."""
        self._snapshot = self._now()

    def read(self) -> None:
        """Read what the system knows of it; in a thread, as it may take milliseconds."""
        processes = {
            (device.name, role): size
            for device, _ in self._snapshot.devices
            for role, pid in device.pids.items()
            if (size := private_bytes(pid)) is not None
        }
        store, free = self._read_disk()
        self._measured = _Measured(processes, store, free, throttling())

    def _read_disk(self) -> tuple[int | None, int | None]:
        """Bytes that the store takes, and that its disk still has room for."""
        if self._store is None:
            return None, None
        used, now = self._measured.store, self._clock()
        if self._looked_at_disk is None or now - self._looked_at_disk >= DISK_SECONDS:
            self._looked_at_disk, used = now, size_on_disk(self._store)
        with suppress(OSError):
            return used, shutil.disk_usage(self._store).free
        return used, None

    def collect(self) -> Iterable[Metric]:
        """Yield all families; without a ``look`` before, hardly any sample."""
        snapshot = self._snapshot
        yield family(
            "braid_ready", "1 while the server takes traffic", (), [((), snapshot.is_ready)]
        )
        yield from _models(snapshot)
        yield from _devices(snapshot)
        yield from _shapes(snapshot)
        yield from _contests(snapshot)
        yield from _memory(snapshot, self._measured)
        yield from _allowance(snapshot, self._measured)
        yield from self._disk()

    def _disk(self) -> Iterator[Metric]:
        disk = self._measured
        for name, text, size in (
            ("braid_store_bytes", "Files of the store, at most a minute ago", disk.store),
            ("braid_store_free_bytes", "Room on the store's disk", disk.free),
            ("braid_store_limit_bytes", "BRAID_MAX_STORE_BYTES", self._store_limit_bytes or None),
        ):
            yield family(name, text, (), [((), size)])


def _models(snapshot: Snapshot) -> Iterator[Metric]:
    states = Counter(dict.fromkeys(ModelStatus, 0))
    states.update(model.state for model, _ in snapshot.versions)
    alive = [
        (model.name, str(model.version), model.state.value, answers)
        for model, answers in snapshot.versions
        if not model.state.has_failed
    ]
    yield family(
        "braid_models",
        "Model versions by state",
        ("state",),
        [((state.value,), count) for state, count in states.items()],
    )
    yield family(
        "braid_model_ready",
        "1 while a version answers requests; versions that failed have no series",
        ("model", "version"),
        [((name, version), answers) for name, version, _, answers in alive],
    )
    yield family(
        "braid_model_loaded",
        "1 while a version is in memory; a request for another one that is ready loads it",
        ("model", "version"),
        [((name, at), (name, int(at)) in snapshot.loaded) for name, at, *_ in alive],
    )
    yield family(
        "braid_model_state",
        "1 for the present state of a version; versions that failed have no series",
        ("model", "version", "state"),
        [((name, version, state), 1) for name, version, state, _ in alive],
    )


def _allowance(snapshot: Snapshot, measured: _Measured) -> Iterator[Metric]:
    stopped = measured.throttled
    allowed = snapshot.cpus or None
    yield family("braid_cpu_allowance", "CPUs that the server may use", (), [((), allowed)])
    budget = snapshot.budget_bytes or None
    yield family("braid_memory_budget_bytes", "BRAID_MEMORY_BYTES", (), [((), budget)])
    for name, text, count in (
        ("braid_cpu_periods", "Periods of the quota of CPU time with work", stopped.periods),
        ("braid_cpu_throttled_periods", "Of these: used up, and stopped", stopped.throttled),
        ("braid_cpu_throttled_seconds", "Seconds stopped, over all cores", stopped.seconds),
    ):
        yield family(name, text, (), [((), count)], kind=CounterMetricFamily)


def _memory(snapshot: Snapshot, measured: _Measured) -> Iterator[Metric]:
    workers = [((*process, "host"), size) for process, size in measured.processes.items()]
    workers += [
        ((device.name, "serving", "gpu"), device.gpu_reserved_bytes)
        for device, _ in snapshot.devices
        if device.gpu_reserved_bytes is not None
    ]
    yield family(
        "braid_worker_memory_bytes",
        "Memory of a device's processes: private on the host, reserved on the GPU",
        ("device", "process", "memory"),
        workers,
    )
    yield family(
        "braid_model_memory_bytes",
        "Memory of a version in a device's worker; sessions of other runtimes as its file is large",
        ("model", "version", "device", "kind", "memory"),
        _model_sizes(snapshot),
    )


_OF_DEVICES: tuple[tuple[str, str, Callable[[Device], float | None]], ...] = (
    ("braid_device_up", "1 while a device's worker answers",
     lambda device: device.answers),
    ("braid_worker_memory_limit_bytes", "Memory that each process of a device may allocate",
     lambda device: device.link.options.memory_bytes or None),
    ("braid_shared_memory_bytes", "Tensors on the way to a device and back",
     lambda device: device.arena.used_bytes),
    ("braid_shared_memory_limit_bytes", "BRAID_SHARED_MEMORY_BYTES",
     lambda device: device.arena.size_bytes),
)  # fmt: skip


def _devices(snapshot: Snapshot) -> Iterator[Metric]:
    for name, text, read in _OF_DEVICES:
        samples = [((device.name,), read(device)) for device, _ in snapshot.devices]
        yield family(name, text, ("device",), samples)
    distances = [
        ((device.name, cores), distance_ns)
        for device, _ in snapshot.devices
        for cores, distance_ns in (
            ("nearest", device.state.least_ns),
            ("farthest", device.state.most_ns),
        )
    ]
    yield family(
        "braid_core_distance_ns",
        "Round trip of a cache line between the two cores of a device that are nearest or farthest",
        ("device", "cores"),
        distances,
    )


def _model_sizes(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    for model, answers in snapshot.versions:
        for device, models in snapshot.devices if answers else ():
            held = models.get(model.artefact)
            if held is None:
                continue
            labels = model.name, str(model.version), device.name
            where = "host" if held.gpu_reserved is None else "gpu"
            yield (*labels, "weights", "host"), held.host_weights
            if held.gpu_weights:
                yield (*labels, "weights", "gpu"), held.gpu_weights
            yield (*labels, "activations", where), held.activations
            if held.sessions:
                yield (*labels, "sessions", where), held.sessions


def _contests(snapshot: Snapshot) -> Iterator[Metric]:
    labels, contests = ("model", "version", "device", "batch_size"), snapshot.contests
    yield family(
        *("braid_plan_runs", "Batches by the plan that ran", (*labels, "plan")),
        [((*of.labels, plan), count) for of in contests for plan, count in of.runs.items()],
        kind=CounterMetricFamily,
    )
    yield family(
        *("braid_plan_contests_open", "Contests of plans that requests have not decided"),
        *((), [((), sum(contest.is_open for contest in contests))]),
    )
    yield family(
        *("braid_plan_estimated_loss_ratio", "Part of the time of requests that trials cost"),
        *(labels, [(contest.labels, contest.estimated_loss) for contest in contests]),
    )


_OF_SHAPES: tuple[tuple[type[Family], str, str, Callable[[ModelReplica], float]], ...] = (
    (GaugeMetricFamily, "braid_shapes_kept", "Shapes of requests that are prepared now",
     lambda of: of.other_shapes.prepared - of.other_shapes.dropped),
    (CounterMetricFamily, "braid_shapes_prepared", "Shapes prepared as requests came in them",
     lambda of: of.other_shapes.prepared),
    (CounterMetricFamily, "braid_shapes_dropped", "Prepared shapes dropped for others",
     lambda of: of.other_shapes.dropped),
    (GaugeMetricFamily, "braid_lengths_scheduled",
     "Scheduled lengths of the axis that requests are padded along",
     lambda of: len(of.scheduled_lengths)),
    (GaugeMetricFamily, "braid_padding_wrong",
     "1 if a request was answered otherwise as it was padded, so that none is any more",
     lambda of: bool(of.lengths.failure)),
    (CounterMetricFamily, "braid_rows_padded", "Rows that ran padded in a scheduled length",
     lambda of: of.lengths.padded),
    (CounterMetricFamily, "braid_padding_checked", "Requests answered again, padded and not",
     lambda of: of.lengths.checked),
)  # fmt: skip


def _shapes(snapshot: Snapshot) -> Iterator[Metric]:
    for kind, name, text, read in _OF_SHAPES:
        samples = [
            ((of.name, str(of.version), of.device.name), read(of)) for of in snapshot.replicas
        ]
        yield family(name, text, ("model", "version", "device"), samples, kind=kind)


def private_bytes(pid: int) -> int | None:
    """Return the memory that only this process has, in bytes; None: it has ended.

    As RLIMIT_DATA bounds it, roughly: neither files that are mapped nor memory that is shared.
    """
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
