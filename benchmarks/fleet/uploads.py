"""A node is killed between the first byte of an upload and its answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.fleet.stand import PLANNER, Findings, Stand, eventually
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


def killed(stand: Stand, fleet: Fleet, chance: random.Random) -> Findings:
    """Kill a node while it takes an upload; it is started again at the end.

    Answered: the job ends READY elsewhere. Not answered: no row is left, and no object after the
    sweep. A caller cannot tell whether its answer was lost after the commit; if so, the same
    registration at another node is answered with the version of the first one.
    """
    findings = Findings()
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
    findings.figures["answered"] = int(isinstance(answers[0], Job))
    findings.figures["row without an answer"] = int(bool(rows) and not isinstance(answers[0], Job))
    if isinstance(answers[0], Job):
        findings.check(bool(rows), f"{name} was answered and is not stored")
    elif rows:
        _check_repeated(
            fleet, chance.choice([x for x in fleet.machines if x.is_on]), file, findings
        )
    if rows:
        _check_ready(fleet, machine, name, findings)
    else:
        left, seconds = eventually(lambda: fleet.s3.objects().keys() <= before.keys(), 0)
        if not left:
            left, seconds = eventually(lambda: not _unwanted(fleet), SWEEP_SECONDS)
        findings.figures["s until swept"] = round(seconds, 1)
        findings.check(bool(left), f"objects of no row: {_unwanted(fleet)}")
    machine.start()
    return findings


def _check_repeated(fleet: Fleet, machine: Machine, file: Path, findings: Findings) -> None:
    """Register once more at a node: the version is the same, with one job for each device type."""
    name = file.stem
    with machine.client() as client:
        job = client.register(name, file, planner=PLANNER)
    versions = fleet.value(f"select count(*) from models where name = '{name}'")
    jobs = fleet.rows(f"select device_keys, count(*) from jobs where model = '{name}' group by 1")
    is_same = int(job.version) == versions == 1
    findings.check(is_same, f"{name} has {versions} versions, and was answered {job.version}")
    findings.check(all(count == 1 for _, count in jobs), f"jobs of {name}: {jobs}")


def _check_ready(fleet: Fleet, machine: Machine, name: str, findings: Findings) -> None:
    def state() -> str:
        return str(fleet.value(f"select state from jobs where model = '{name}' limit 1"))

    eventually(lambda: state() in ENDED, JOB_SECONDS)
    findings.check(state() == "READY", f"{name}: {state()}, accepted by {machine.name}")


def _unwanted(fleet: Fleet) -> list[str]:
    """Objects of the fleet that hold the bytes of no model; one names the fleet's database."""
    digests = {MARKER, *(digest for [digest] in fleet.rows("select sha256 from models"))}
    return [
        path
        for path in fleet.s3.objects()
        if path.startswith(fleet.database) and not any(wanted in path for wanted in digests)
    ]
