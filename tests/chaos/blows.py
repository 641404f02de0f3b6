"""The processes of a server by kind, and a random kill of one of them."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Mapping

import psutil

from tests.service.server_process import ServerProcess

FRONT_END = "front end"

_MODULES = {
    "braid.engine.worker.process.main": "worker",
    "braid.engine.worker.process.measuring_main": "bench",
    "braid.engine.importer.sandbox": "importer",
    "braid.server.jobs.planner.process": "planner",
}

_WEIGHTS = {"worker": 4, "bench": 3, "importer": 3, "planner": 3, FRONT_END: 1}


def by_kind(server: ServerProcess) -> Mapping[str, list[psutil.Process]]:
    """All processes of a running server; a worker and its spare are of one kind."""
    found = defaultdict(list)
    found[FRONT_END].append(psutil.Process(server.process.pid))
    for process in server.children:
        try:
            arguments = process.cmdline()
        except psutil.Error:  # it has ended
            continue
        for argument in arguments:
            if argument in _MODULES:
                found[_MODULES[argument]].append(process)
    return found


class Blows:
    """Kills at random, by a seed."""

    def __init__(self, seed: int) -> None:
        self.struck: Counter[str] = Counter()
        self._chance = random.Random(seed)

    def pause_s(self, mean_s: float) -> float:
        """Seconds until the next one."""
        return min(4 * mean_s, self._chance.expovariate(1 / mean_s))

    def strike(self, server: ServerProcess) -> str:
        """Kill (-9) a process of a random kind that runs now; returns the kind."""
        running = by_kind(server)
        kinds = sorted(running)
        [kind] = self._chance.choices(kinds, [_WEIGHTS[each] for each in kinds])
        victim = self._chance.choice(running[kind])
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return kind
        if kind == FRONT_END:
            server.process.wait()
        self.struck[kind] += 1
        return kind
