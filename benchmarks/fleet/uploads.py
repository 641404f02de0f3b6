"""A node is killed between the first byte of an upload and its answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.fleet.stand import PLANNER, Seen, Stand, eventually
from braid.server.fleet.files.place import MARKER
from braid_client import BraidError, Job
from tests.fleet.fleet import Fleet
from tests.fleet.machine import Machine

ENDED = ("READY", "UNSCHEDULED", "FAILED", "CANCELLED")
JOB_SECONDS = 300.0
ANSWER_SECONDS = 15.0  # a machine without power closes no connection
SWEEP_SECONDS = 60.0
SWEPT_SOON: Mapping[str, str] = MappingProxyType({"BRAID_FILES_GRACE_SECONDS": "20"})
"""Settings of a fleet whose sweep removes what no row needs after 20 s, not after an hour."""


def killed(stand: Stand, fleet: Fleet, chance: random.Random) -> Seen:
    """Kill a node while it takes an upload; it is started again at the end.

    Answered: the job ends READY elsewhere. Not answered: no row is left, and no object after the
    sweep. Where the answer was lost after the commit, which no caller can tell from that, the same
    registration at another node is answered with the version of the first one.
    """
    seen = Seen()
    name, file = stand.model(size=8)
    machine = chance.choice(fleet.machines)
    answers: list[Job | BraidError] = []

    def register() -> None:
        with machine.client() as client:
            try:
                answers.append(
                    client.register(name, file, planner=PLANNER, timeout_s=ANSWER_SECONDS)
                )
            except BraidError as error:
                answers.append(error)

    before = fleet.s3.objects()
    thread = threading.Thread(target=register)
    thread.start()
    time.sleep(chance.uniform(0, 0.12))
    machine.power_off()
    thread.join()
    rows = fleet.rows(f"select sha256 from models where name = '{name}'")
    seen.figures["answered"] = int(isinstance(answers[0], Job))
    seen.figures["row without an answer"] = int(bool(rows) and not isinstance(answers[0], Job))
    if isinstance(answers[0], Job):
        seen.check(bool(rows), f"{name} was answered and is not stored")
    elif rows:
        _check_repeated(fleet, chance.choice([x for x in fleet.machines if x.is_on]), file, seen)
    if rows:
        _check_ready(fleet, machine, name, seen)
    else:
        left, seconds = eventually(lambda: fleet.s3.objects().keys() <= before.keys(), 0)
        if not left:
            left, seconds = eventually(lambda: not _unwanted(fleet), SWEEP_SECONDS)
        seen.figures["s until swept"] = round(seconds, 1)
        seen.check(bool(left), f"objects of no row: {_unwanted(fleet)}")
    machine.start()
    return seen


def _check_repeated(fleet: Fleet, machine: Machine, file: Path, seen: Seen) -> None:
    """Register once more at a node: the version is the same, with one job for each device type."""
    name = file.stem
    with machine.client() as client:
        job = client.register(name, file, planner=PLANNER)
    versions = fleet.value(f"select count(*) from models where name = '{name}'")
    jobs = fleet.rows(f"select device_keys, count(*) from jobs where model = '{name}' group by 1")
    is_same = int(job.version) == versions == 1
    seen.check(is_same, f"{name} has {versions} versions, and was answered {job.version}")
    seen.check(all(count == 1 for _, count in jobs), f"jobs of {name}: {jobs}")


def _check_ready(fleet: Fleet, machine: Machine, name: str, seen: Seen) -> None:
    def state() -> str:
        return str(fleet.value(f"select state from jobs where model = '{name}' limit 1"))

    eventually(lambda: state() in ENDED, JOB_SECONDS)
    seen.check(state() == "READY", f"{name}: {state()}, accepted by {machine.name}")


def _unwanted(fleet: Fleet) -> list[str]:
    """Objects of the fleet that hold the bytes of no model; one names the fleet's database."""
    known = {MARKER, *(digest for [digest] in fleet.rows("select sha256 from models"))}
    return [
        path
        for path in fleet.s3.objects()
        if path.startswith(fleet.database) and not any(each in path for each in known)
    ]
