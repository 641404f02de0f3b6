"""Looks at the processes of a server every few seconds, and at latencies as they come."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from pathlib import Path
from statistics import quantiles
from time import monotonic

import psutil

from campaigns.chaos.blows import by_kind
from tests.service.server_process import ServerProcess

EVERY_S = 2.0

_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)

Key = tuple[str, int]
"""Kind and id of a process."""

Series = list[tuple[float, float]]
"""Pairs of seconds and a value."""


class Samples:
    """Series of each process: private memory in bytes, descriptors, threads. A thread fills it."""

    def __init__(self, server: ServerProcess) -> None:
        """Begin to look."""
        self.memory: dict[Key, Series] = defaultdict(list)
        self.descriptors: dict[Key, Series] = defaultdict(list)
        self.threads: dict[Key, Series] = defaultdict(list)
        self.looks = 0
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples, and wait until the thread has ended."""
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(EVERY_S):
            now = monotonic()
            for kind, processes in by_kind(self._server).items():
                for process in processes:
                    self._look(kind, process, now)
            self.looks += 1

    def _look(self, kind: str, process: psutil.Process, now: float) -> None:
        key = kind, process.pid
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            descriptors, threads = process.num_fds(), process.num_threads()
        except (OSError, psutil.Error):  # it has ended
            return
        match = _ANONYMOUS.search(status)
        if match is not None:
            self.memory[key].append((now, int(match[1]) * 1024.0))
            self.descriptors[key].append((now, float(descriptors)))
            self.threads[key].append((now, float(threads)))


class Latencies:
    """p50 and p99 of answers, of one stretch of time after the other. Safe between threads."""

    def __init__(self, stretch_s: float) -> None:
        self.p50: Series = []
        self.p99: Series = []
        self._stretch_s = stretch_s
        self._began = monotonic()
        self._seconds: list[float] = []
        self._lock = threading.Lock()

    def took(self, seconds: float) -> None:
        """Count an answer."""
        with self._lock:
            self._seconds.append(seconds)
            now = monotonic()
            if now < self._began + self._stretch_s or len(self._seconds) < 100:
                return
            cuts = quantiles(self._seconds, n=100)
            self.p50.append((now, cuts[49]))
            self.p99.append((now, cuts[98]))
            self._began, self._seconds = now, []
