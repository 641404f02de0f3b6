"""A process with a store on a shared database, which does what it is told: a node without a server.

    python -m tests.fleet.store_process URL FOLDER NODE      one JSON command a line, one answer

It beats only when told, so that time passes when a test says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from braid.core.errors import TakenOver
from braid.core.measurement import StageLatency
from braid.server.fleet.records import JOB, Lease
from braid.server.fleet.store import FleetStore
from braid.server.store.records import JobStatus, NodeRecord
from tests import ROOT
from tests.fleet.machine import skew_variables
from tests.server.store.registering import register

LEASE_SECONDS = 3600.0
"""Leases end when a test says so."""

DEVICES = "cpu-a"


class StoreProcess:
    """Such a process, from outside."""

    def __init__(self, url: str, folder: Path, node: str, skew_seconds: int) -> None:
        """Start it, with a wall clock that is wrong by some seconds."""
        self.node = node
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.fleet.store_process", url, str(folder), node]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **skew_variables(skew_seconds)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._read() == "ready", (folder / "log").read_text()

    def tell(self, what: str, *arguments: object) -> Any:
        """Have it do something; its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, *arguments]).encode() + b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Commands:
    """What such a process does; methods are commands."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store
        self._leases: dict[str, Lease] = {}

    def register(self, name: str) -> str:
        """Register a model; returns its job, whose lease this process then has."""
        made = register(self._store, name, name.encode(), device_keys=DEVICES)
        if isinstance(made.grant, Lease):
            self._leases[made.grant.name] = made.grant
        return made.job.id

    def acquire(self, name: str) -> int | None:
        """Take a lease; returns its fence."""
        lease = self._store.acquire(name)
        if lease is None:
            return None
        self._leases[name] = lease
        return lease.fence

    def claim(self, job: str) -> int | None:
        """Take a job over; returns the fence."""
        claimed = self._store.claim_job(job, DEVICES)
        if claimed is None:
            return None
        self._leases[claimed.lease.name] = claimed.lease
        return claimed.lease.fence

    def release(self, name: str) -> bool:
        """Release a lease as far as this process has it."""
        self._store.release(self._leases.pop(name))
        return True

    def write(self, name: str) -> bool:
        """Write under a lease, of a job its progress; returns False if that is refused."""
        lease = self._leases[name]
        fenced = self._store.fenced(lease)
        try:
            if name.startswith(JOB):
                job = self._store.find_job(name.removeprefix(JOB))
                state = JobStatus.PROFILING
                fenced.save_job(replace(job, state=state, detail=f"fence {lease.fence}"))
            else:
                fenced.put_latencies(name, {"stage": StageLatency(float(lease.fence), 0.1, 3)})
        except TakenOver:
            return False
        return True

    def end(self, name: str) -> bool:
        """End a job under its lease; returns False if that is refused."""
        lease = self._leases[name]
        job = self._store.find_job(name.removeprefix(JOB))
        try:
            self._store.fenced(lease).end_job(replace(job, state=JobStatus.READY))
        except TakenOver:
            return False
        del self._leases[name]
        return True


def main(url: str, folder: str, node: str) -> None:
    """Obey until the input ends."""
    store = FleetStore.open(Path(folder) / "store", database=make_url(url), node=node)
    store.join(NodeRecord(node, f"{node}:8001", DEVICES, "1"), LEASE_SECONDS)
    commands = Commands(store)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(commands, what)(*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
