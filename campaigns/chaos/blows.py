"""Blows at random, by a seed: processes killed, stopped and starved, and what they stand on.

A blow to processes goes on beside the next ones; one to the surroundings is over when it returns,
and kills a process in its middle now and then.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic

import psutil

from campaigns.chaos.surroundings import FAILING, Faults, Surroundings, limited
from tests.service.server_process import ServerProcess

FRONT_END = "front end"

_MODULES = {
    "braid.engine.worker.process.main": "worker",
    "braid.compiler.process": "bench",
    "braid.engine.importer.sandbox": "importer",
    "braid.engine.processes.fork_server": "fork server",
}

_WEIGHTS = {"worker": 8, "bench": 8, "importer": 2, "fork server": 2, FRONT_END: 2}
"""How often a kind is struck, as far as it runs."""

ANSWERING_SHARE = 0.7
"""Share of blows to a server that answers; those that follow at once find most processes gone."""

LONGEST_STOP_S = 12.0
"""Longer than a silent worker is left alone."""

LONGEST_FAULT_S = 3.0
STARVED_S, TURN_S = 5.0, 0.2  # a starved process runs for a twentieth of each turn


def by_kind(server: ServerProcess) -> Mapping[str, list[psutil.Process]]:
    """All processes of a running server; children have the kind of their module."""
    processes = defaultdict(list)
    processes[FRONT_END].append(psutil.Process(server.process.pid))
    for process in server.children:
        try:
            arguments = process.cmdline()
        except psutil.Error:  # it has ended
            continue
        for argument in arguments:
            if argument in _MODULES:
                processes[_MODULES[argument]].append(process)
    return processes


class Blows:
    """Blows at random. Used by one thread."""

    def __init__(self, seed: int, server: ServerProcess, around: Surroundings) -> None:
        self.killed: Counter[str] = Counter()  # processes, by kind
        self.struck: Counter[str] = Counter()  # blows, by name
        self.spares_front_end = False  # kill none, for now
        self.has_killed_front_end = False  # since the campaign started one
        self._chance = random.Random(seed)
        self._server, self._around = server, around
        self._under_way: list[threading.Thread] = []
        self._blows: list[tuple[int, Callable[[], str]]] = [
            (60, self._kill_one),
            (10, self._kill_several),
            (2, self._kill_all),
            (8, self._stop),
            (5, self._starve),
            (2, self._descriptors),
            (2, self._memory),
        ]
        if around.environment.get("LD_PRELOAD"):
            self._blows += [(2, self._fsync), (2, self._rename), (3, self._clock)]
        if os.path.ismount(around.disk):
            self._blows.append((3, self._full_disk))

    def pause_s(self, mean_s: float) -> float:
        """Seconds until the next one."""
        return min(4 * mean_s, self._chance.expovariate(1 / mean_s))

    def waits_for_answer(self) -> bool:
        """Whether the next one is to strike a server that answers, not one that restarts."""
        return self._chance.random() < ANSWERING_SHARE

    def strike(self) -> str:
        """Strike once; returns what was done."""
        weights, blows = zip(*self._blows, strict=True)
        [blow] = self._chance.choices(blows, weights)
        try:
            what = str(blow())
        except (ProcessLookupError, psutil.NoSuchProcess):  # it ended before it was struck
            return "a miss"
        self.struck[what] += 1
        return what

    def settle(self) -> None:
        """Wait until no process is stopped or starved any more."""
        for thread in self._under_way:
            thread.join()
        self._under_way.clear()

    # Processes.

    def _kill_one(self) -> str:
        kind, process = self._any()
        self._kill(kind, process)
        return f"kill a {kind}"

    def _kill_several(self) -> str:
        """Kill some of all processes in one moment."""
        running = self._running()
        for kind, process in self._chance.sample(running, self._chance.randint(1, len(running))):
            self._kill(kind, process)
        return "kill several"

    def _kill_all(self) -> str:
        for kind, process in self._running():
            self._kill(kind, process)
        return "kill all"

    def _by_kind(self) -> dict[str, list[psutil.Process]]:
        """Processes that may be struck."""
        processes = dict(by_kind(self._server))
        if self.spares_front_end:
            del processes[FRONT_END]
        if not processes:
            raise ProcessLookupError("nothing but the front end runs")
        return dict(sorted(processes.items()))

    def _running(self) -> list[tuple[str, psutil.Process]]:
        return [
            (kind, process) for kind, processes in self._by_kind().items() for process in processes
        ]

    def _any(self) -> tuple[str, psutil.Process]:
        processes = self._by_kind()
        [kind] = self._chance.choices(list(processes), [_WEIGHTS[name] for name in processes])
        return kind, self._chance.choice(processes[kind])

    def _kill(self, kind: str, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(signal.SIGKILL)
            self.killed[kind] += 1
        if kind == FRONT_END:
            self.has_killed_front_end = True
            self._server.process.wait()

    def _stop(self) -> str:
        kind, process = self._any()
        self._beside(_stopped, process, self._chance.uniform(0.1, LONGEST_STOP_S))
        return f"stop a {kind}"

    def _starve(self) -> str:
        kind, process = self._any()
        self._beside(_starved, process, self._chance.uniform(0.5, STARVED_S))
        return f"starve a {kind}"

    def _beside(
        self, do: Callable[[psutil.Process, float], None], process: psutil.Process, seconds: float
    ) -> None:
        thread = threading.Thread(target=do, args=(process, seconds))
        self._under_way.append(thread)
        thread.start()

    # What they stand on.

    def _descriptors(self) -> str:
        process = psutil.Process(self._server.process.pid)
        more = self._chance.choice([0, 1, 3, 8])
        self._during(limited(process, resource.RLIMIT_NOFILE, lambda used: used + more))
        return "no descriptors"

    def _memory(self) -> str:
        children = [child for child in self._running() if child[0] != FRONT_END]
        if not children:
            raise ProcessLookupError("there are no children")
        kind, process = self._chance.choice(children)
        more = self._chance.choice([0, 1 << 20, 32 << 20])
        self._during(limited(process, resource.RLIMIT_DATA, lambda used: used + more))
        return f"no memory for a {kind}"

    def _fsync(self) -> str:
        error = self._chance.choice(FAILING)
        self._during(self._around.faulty(Faults(fsync_errno=error)))
        return "fsync fails"

    def _rename(self) -> str:
        error = self._chance.choice(FAILING)
        self._during(self._around.faulty(Faults(rename_errno=error)))
        return "rename fails"

    def _clock(self) -> str:
        """Set the clock forth or back, to be right again after the next jump or the round."""
        jump = self._chance.choice([-86400, -3600, -30, 0, 30, 3600, 86400, 400 * 86400])
        self._around.set(Faults(clock_offset_s=jump))
        return "clock jumps"

    def _full_disk(self) -> str:
        left = self._chance.choice([0, 4 << 10, 64 << 10, 1 << 20])
        self._during(self._around.full(left))
        return "full disk"

    def _during(self, fault: AbstractContextManager[None]) -> None:
        """Keep a fault up for a while; in some, a process is killed in the middle."""
        seconds = self._chance.uniform(0.2, LONGEST_FAULT_S)
        with fault:
            _sleep(seconds / 2)
            if self._chance.random() < 0.3:
                with suppress(ProcessLookupError, psutil.NoSuchProcess):
                    self._kill_one()
            _sleep(seconds / 2)


def _stopped(process: psutil.Process, seconds: float) -> None:
    with _continued(process):
        process.suspend()
        _sleep(seconds)


def _starved(process: psutil.Process, seconds: float) -> None:
    until = monotonic() + seconds
    with _continued(process):
        while monotonic() < until:
            process.suspend()
            _sleep(0.95 * TURN_S)
            process.resume()
            _sleep(0.05 * TURN_S)


@contextmanager
def _continued(process: psutil.Process) -> Iterator[None]:
    """Let a process run after the context, if it lives, which it need not."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        try:
            yield
        finally:
            process.resume()


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)
