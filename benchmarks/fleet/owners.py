"""The owner of a job is killed, paused or cut off at a random moment of one of its states.

What must hold: the job ends READY on another node, nothing is measured twice, no more than 15 s
pass without progress, and what the former owner writes too late is refused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, pairwise

from benchmarks.fleet.audit import Audit, Write
from benchmarks.fleet.stand import PLANNER, Findings, Stand, eventually, machine_named
from tests.fleet.fleet import Fleet
from tests.fleet.machine import Machine

STATES = ("IMPORTING", "PROFILING", "SCHEDULING", "VERIFYING")
"""States of a job that has an owner; SCHEDULING is the search."""

Act = Callable[[Machine], None]

_sizes = count(8, 2)
"""Width of the next images: no two networks have a stage in common, so that each is measured."""

MOST_SECONDS = 15.0
"""Most seconds without progress."""

AWAY_SECONDS = 20.0
JOB_SECONDS = 300.0
LOOK_SECONDS = 0.005

_ENDED = ("READY", "UNSCHEDULED", "FAILED", "CANCELLED")
_LASTS_S = {"IMPORTING": 2.0, "PROFILING": 1.5, "SCHEDULING": 0.05, "VERIFYING": 0.5}
"""How far into a state the moment may lie."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A job at the moment when something happens to its owner."""

    job: str
    model: str
    owner: Machine
    state: str
    at: float  # epoch seconds by the database's clock

    @property
    def lease(self) -> str:
        return f"job:{self.job}"


@dataclass(frozen=True, slots=True)
class Blow:
    """What is done to which owner of a job, and in which state of the job."""

    state: str
    act: Act
    has_peer: bool  # the owner is one of several machines of its type, else any


def strike(stand: Stand, fleet: Fleet, chance: random.Random, blow: Blow) -> Struck:
    """Register a model, and strike its job's owner at a random moment of a state."""
    while True:
        among = [
            candidate
            for candidate in fleet.machines
            if not blow.has_peer or _has_peer(fleet, candidate)
        ]
        machine = chance.choice(among)
        name, file = stand.model(branches=2, size=next(_sizes))
        with machine.client() as client:
            job = client.register(name, file, planner=PLANNER, batch_sizes=[1, 2])
        if caught := _caught(fleet, job.id, blow.state, chance):
            owner, at = caught
            blow.act(owner)
            return Struck(job.id, name, owner, blow.state, at)
        _forget(fleet, name)


def _forget(fleet: Fleet, name: str) -> None:
    """Delete a model, so that what is left to do for it does not count as load of the next run."""
    machine = next(candidate for candidate in fleet.machines if candidate.is_on)
    with machine.client() as client:
        client.delete(name)


def _caught(
    fleet: Fleet, job: str, state: str, chance: random.Random
) -> tuple[Machine, float] | None:
    """Wait for a random moment of a state; returns the job's owner, and when that was.

    None: the job has ended, and was in the state for too short a time.
    """
    query = (
        "select state, node, extract(epoch from clock_timestamp())::float8 "
        f"from jobs left join leases on leases.name = 'job:' || jobs.id where jobs.id = '{job}'"
    )
    with fleet.postgres.connect(fleet.database) as connection, connection.cursor() as cursor:
        current = ""
        while current not in _ENDED:
            [current, *_] = cursor.execute(query).fetchone() or ("",)
            if current == state:
                time.sleep(chance.uniform(0, _LASTS_S[state]))
                current, node, at = cursor.execute(query).fetchone() or ("", "", 0.0)
                if current == state and node:
                    return machine_named(fleet, node), at
            time.sleep(LOOK_SECONDS)
    return None


def _has_peer(fleet: Fleet, machine: Machine) -> bool:
    return sum(other.arguments == machine.arguments for other in fleet.machines) > 1


def _state(fleet: Fleet, job: str) -> str:
    return str(fleet.value(f"select state from jobs where id = '{job}'"))


def _now(fleet: Fleet) -> float:
    return float(fleet.value("select extract(epoch from clock_timestamp())::float8"))


def killed(
    stand: Stand, fleet: Fleet, chance: random.Random, state: str, *, has_peer: bool = False
) -> Findings:
    """Kill the machine of a job's owner; it is started again at the end."""
    findings = Findings()
    struck = strike(stand, fleet, chance, Blow(state, Machine.power_off, has_peer))
    check_end(fleet, struck, findings)
    _forget(fleet, struck.model)
    struck.owner.start()
    return findings


def away(
    stand: Stand,
    fleet: Fleet,
    chance: random.Random,
    leave: Act,
    come: Act,
    *,
    has_peer: bool = False,
) -> Findings:
    """Stop or cut off a job's owner for 20 s; what it writes later is refused."""
    findings = Findings()
    struck = strike(stand, fleet, chance, Blow("PROFILING", leave, has_peer))
    time.sleep(AWAY_SECONDS)
    come(struck.owner)
    back_at = _now(fleet)
    check_end(fleet, struck, findings)
    struck.owner.await_ready()
    time.sleep(2)  # for what it may still try to write
    late = [write for write in foreign_writes(fleet, struck) if write.at > struck.at]
    findings.figures["late writes"] = len(late)
    findings.figures["job had ended before it came back"] = str(_ended_at(fleet, struck) < back_at)
    findings.check(not late, f"{struck.owner.name} wrote late: {late}")
    _forget(fleet, struck.model)
    return findings


def check_end(fleet: Fleet, struck: Struck, findings: Findings) -> None:
    """Wait for the job's end on another node, and compare with what must hold."""
    ended, _ = eventually(lambda: _state(fleet, struck.job) in _ENDED, JOB_SECONDS)
    state = _state(fleet, struck.job)
    message = fleet.value(f"select message from jobs where id = '{struck.job}'")
    findings.check(bool(ended) and state == "READY", f"{struck.model}: {state} {message}")
    audit = Audit(fleet)
    registered_at = audit.writes("jobs", f"row->>'id' = '{struck.job}'")[0].at
    taken = [
        write
        for write in audit.writes("leases", f"row->>'name' = '{struck.lease}'")
        if write.at > struck.at and write.after["node"] != struck.owner.name
    ]
    still = _longest_still(fleet, struck)
    again = _measured_again(audit, struck)
    next_owner = machine_named(fleet, taken[0].after["node"]) if taken else struck.owner
    findings.figures |= {
        "struck in": struck.state,
        "owner had a peer": str(_has_peer(fleet, struck.owner)),
        "s until taken over": round(taken[0].at - struck.at, 2) if taken else -1,
        "longest s without progress": round(still, 2),
        "stages measured by the owner": _measured(audit, struck.owner, registered_at),
        "stages measured by the next": _measured(audit, next_owner, struck.at),
        "measured again": len(again),
        "fences": len({write.after["fence"] for write in taken}),
    }
    findings.check(bool(taken), f"nobody took over {struck.model} from {struck.owner.name}")
    findings.check(still <= MOST_SECONDS, f"{still:.1f} s without progress of {struck.model}")
    findings.check(not again, f"measured again: {again}")


def _longest_still(fleet: Fleet, struck: Struck) -> float:
    """Longest time from the strike to the job's end in which no other node got on with the model.

    A node of another type that works on a job of its own for the same model ends that one first:
    the struck job is done with it.
    """
    jobs = Audit(fleet).writes("jobs", f"row->>'model' = '{struck.model}'")
    ended_at = _ended_at(fleet, struck)
    times = [write.at for write in jobs if write.host != struck.owner.host and write.at <= ended_at]
    times = [struck.at, *(at for at in times if at > struck.at)]
    return max((later - at for at, later in pairwise(times)), default=float("inf"))


def _measured(audit: Audit, machine: Machine, since: float) -> int:
    """Number of stages that a machine measured and no other had."""
    writes = audit.writes("measurements", "what = 'INSERT'")
    return sum(write.at >= since and write.host == machine.host for write in writes)


def _measured_again(audit: Audit, struck: Struck) -> list[str]:
    """Stages of the owner that others measured as if it had not.

    A planner may ask for one more sample of a stage; that adds to those that were stored.
    """
    first: dict[tuple[str, str], int] = {}
    before: set[tuple[str, str]] = set()
    again = []
    for write in audit.writes("measurements", "what <> 'DELETE'"):
        row = write.after
        key = (row["device_key"], row["signature"])
        first.setdefault(key, row["repeats"])
        is_own = write.host == struck.owner.host
        if is_own and write.at <= struck.at:
            before.add(key)
        is_after = not is_own and write.at > struck.at
        if is_after and key in before and row["repeats"] < 1.5 * first[key]:
            again.append(row["signature"])
    return again


def foreign_writes(fleet: Fleet, struck: Struck) -> list[Write]:
    """Writes to the job by its former owner's machine while another held its lease."""
    audit = Audit(fleet)
    leases = audit.writes("leases", f"row->>'name' = '{struck.lease}'")
    foreign = []
    for write in audit.writes("jobs", f"row->>'id' = '{struck.job}'"):
        holder = [lease.after["node"] for lease in leases if lease.at <= write.at][-1:]
        if holder and write.host == struck.owner.host and holder[0] != struck.owner.name:
            foreign.append(write)
    return foreign


def _ended_at(fleet: Fleet, struck: Struck) -> float:
    writes = Audit(fleet).writes("jobs", f"row->>'id' = '{struck.job}'")
    return next((write.at for write in writes if write.after["state"] in _ENDED), float("inf"))
