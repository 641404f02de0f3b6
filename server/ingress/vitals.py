"""How each ingress is doing, for the metrics: what it says itself, and what the kernel says of it.

    ingress ──{op: state} each second──> Vitals ──┐
    /proc ────────── when somebody asks ──────────┴──> IngressMetrics ──> /metrics

Each series has a label ``process``. Requests are counted where they are queued, in the owner, so
nothing needs to be added up here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

SAY_SECONDS = 1.0
"""How often an ingress says how it is."""

ESTABLISHED = "01"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")


@dataclass(slots=True)
class Vitals:
    """What one ingress said last."""

    calls: int = 0  # RPCs under way
    refused: int = 0  # for want of shared memory, since it started
    silent: int = 0  # times that it was looked for in vain

    def heard(self, calls: int, refused: int) -> None:
        """It lives."""
        self.calls, self.refused, self.silent = calls, refused, 0

    def has_ended(self) -> None:
        """Nothing is under way there any more."""
        self.calls = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One ingress at the moment."""

    name: str
    pid: int | None  # None: it is being started again
    vitals: Vitals


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process takes of the machine."""

    cpu_seconds: float
    resident_bytes: int


class IngressMetrics(Collector):
    """The series of all ingress processes. Asked by the thread that renders the metrics."""

    def __init__(self, look: Callable[[], Sequence[Seen]], port: Callable[[], int]) -> None:
        self._look = look
        self._port = port

    def collect(self) -> Iterable[Metric]:
        """Look at each process now."""
        label = ("process",)
        up = GaugeMetricFamily("braid_ingress_up", "1 while the process runs", labels=label)
        calls = GaugeMetricFamily("braid_ingress_calls", "RPCs under way", labels=label)
        connections = GaugeMetricFamily(
            "braid_ingress_connections", "Connections of callers", labels=label
        )
        resident = GaugeMetricFamily(
            "braid_ingress_resident_memory_bytes", "Memory, the shared included", labels=label
        )
        cpu = CounterMetricFamily("braid_ingress_cpu_seconds", "CPU time", labels=label)
        refused = CounterMetricFamily(
            "braid_ingress_refused", "Calls refused for want of shared memory", labels=label
        )
        for seen in self._look():
            usage = None if seen.pid is None else usage_of(seen.pid)
            up.add_metric([seen.name], float(usage is not None))
            calls.add_metric([seen.name], seen.vitals.calls)
            refused.add_metric([seen.name], seen.vitals.refused)
            if seen.pid is not None and usage is not None:
                cpu.add_metric([seen.name], usage.cpu_seconds)
                resident.add_metric([seen.name], usage.resident_bytes)
                connections.add_metric([seen.name], connections_of(seen.pid, self._port()))
        return [up, calls, connections, resident, cpu, refused]


def usage_of(pid: int) -> Usage | None:
    """CPU time and memory; None: there is no such process any more."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    user, system, pages = int(fields[11]), int(fields[12]), int(fields[21])
    return Usage((user + system) / TICKS, pages * PAGE_BYTES)


def connections_of(pid: int, port: int) -> int:
    """Established TCP connections of a process on one of its ports."""
    own = set(_sockets(pid))
    return sum(inode in own for inode in _established(pid, port))


def _sockets(pid: int) -> Iterator[str]:
    """Inodes of a process's sockets."""
    folder = PROC / str(pid) / "fd"
    with suppress(OSError):
        for descriptor in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                target = os.readlink(folder / descriptor)
                if target.startswith("socket:["):
                    yield target[8:-1]


def _established(pid: int, port: int) -> Iterator[str]:
    """Inodes of all TCP sockets that are connected to somebody from ``port``."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == ESTABLISHED and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
