"""How a device worker is started, and how it ends. Loads no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from braid.engine.processes.child import ChildEnd

LOST_EXIT_CODE = 86  # of a worker whose CUDA context is poisoned, or interpreter unsound


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Limits in seconds after which a worker counts as hung; see engine/link/watch.py."""

    silence_s: float = 10.0  # without a word from its process ...
    late_silence_s: float = 1.0  # ... while a run is overdue
    step_s: float = 60.0  # on one step of work that is no run, in which it can let nobody go first


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of a worker process."""

    threads: int
    arena_bytes: int
    activation_bytes: int
    timing_repeats: int = 7  # samples of a measurement, of which the median counts
    gpu: int | None = None  # which of the GPUs that the server sees; None: the CPU
    cores: tuple[int, ...] = ()  # of a CPU device; empty: all that the process may use
    pin_threads: bool = True
    cpu_quota: float = 0.0  # CPUs that a quota leaves the device; its threads then never spin
    start_timeout_s: float = 60.0  # without CPU time, from one answer to the next, until it is up
    max_backoff_s: float = 5.0
    gives_way: bool = False  # to another process that serves requests on the same cores
    watch: WatchLimits = WatchLimits()
    memory_bytes: int = 0  # that it may allocate; 0: as much as there is
    bench_memory_bytes: int = 0  # that the process that measures beside it may allocate
    module: str = "braid.engine.worker.process.main"


class EndReason(enum.Enum):
    """Reason of a worker's end that the front end did not ask for."""

    DEVICE_LOST = "device_lost"  # the device or the process is beyond use
    HUNG = "hung"  # by the front end, as it did not answer or did not end a run
    KILLED = "killed"  # by a signal: a crash, or the kernel, which was short of memory
    EXITED = "exited"  # for another reason; its own log says more


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """End of a worker: its reason, and a text for the log."""

    reason: EndReason
    text: str  # for the log

    @staticmethod
    def of(end: ChildEnd, last_words: str, problem: str = "") -> WorkerEnd:
        if problem:
            return WorkerEnd(EndReason.HUNG, problem)
        if end.status == LOST_EXIT_CODE:
            why = last_words or "the device failed"
            return WorkerEnd(EndReason.DEVICE_LOST, f"{why} (exit code {end.status})")
        reason = EndReason.KILLED if end.signal_name else EndReason.EXITED
        return WorkerEnd(reason, end.text)
