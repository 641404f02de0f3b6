"""What one node made, on all nodes: schedules, models after a start, outputs, no SQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from types import MappingProxyType

from benchmarks.fleet.audit import Audit
from benchmarks.fleet.outages import answers, serve
from benchmarks.fleet.registering import types_of, unended
from benchmarks.fleet.stand import PLANNER, Findings, Stand, eventually
from campaigns.traffic import Question, questions
from tests.fleet.fleet import Fleet
from tests.fleet.machine import Machine

NOTIFIED_SECONDS, POLLED_SECONDS = 5.0, 30.0
READY_SECONDS, NEW_NODE_SECONDS = 90.0, 30.0
JOB_SECONDS = 600.0
FOLLOWED_SIZES = (1, 4)

STILL: Mapping[str, str] = MappingProxyType({"BRAID_LEASE_SECONDS": "3600"})
"""Settings of a fleet whose nodes have nothing to tell the database for an hour."""

_DEAF = (
    "create function public.pg_notify(text, text) returns void language sql as $$ $$",
    'alter database "{}" set search_path = public, pg_catalog',
)
"""Has every NOTIFY of connections that begin later go nowhere."""


def schedules(stand: Stand, fleet: Fleet, *, is_notified: bool = True, models: int = 3) -> Findings:
    """Seconds from a stored schedule until every node of its type has it in place."""
    findings = Findings()
    if not is_notified:
        for statement in _DEAF:
            fleet.rows(statement.format(fleet.database))
        fleet.power_off()
        fleet.start()
    limit = NOTIFIED_SECONDS if is_notified else POLLED_SECONDS
    late: list[float] = []
    for _ in range(models):
        for (name, size), seconds in _followed(stand, fleet, limit).items():
            late.append(seconds)
            findings.check(seconds <= limit, f"{name} has batch size {size} {seconds:.1f} s late")
    findings.figures |= {
        "schedules on nodes": len(late),
        "slowest s from stored to served": round(max(late, default=0.0), 2),
    }
    findings.check(len(late) == 2 * models * len(fleet.machines), f"schedules on nodes: {late}")
    return findings


def _followed(stand: Stand, fleet: Fleet, limit: float) -> dict[tuple[str, int], float]:
    """Seconds from stored to in place, by node and batch size, of a new model's schedules."""
    name, file = stand.model(branches=2)
    watches = [_Watch(machine, name) for machine in fleet.machines]
    with fleet.machines[0].client() as client:
        client.register(name, file, planner=PLANNER, batch_sizes=FOLLOWED_SIZES)
    digest = sha256(file.read_bytes()).hexdigest()
    count = f"select count(*) from schedules where model_digest = '{digest}'"
    wanted = types_of(fleet) * len(FOLLOWED_SIZES)
    eventually(lambda: fleet.value(count) >= wanted and not unended(fleet), JOB_SECONDS)
    eventually(lambda: all(watch.is_done for watch in watches), 2 * limit)
    stored_at = {
        (write.after["device_key"], write.after["batch_size"]): write.at
        for write in Audit(fleet).writes("schedules", f"row->>'model_digest' = '{digest}'")
    }
    types = dict(fleet.rows("select id, device_keys from nodes"))
    return {
        (watch.machine.name, size): max(0.0, at - stored_at[types[watch.machine.name], size])
        for watch in watches
        for size, at in watch.stop().items()
    }


class _Watch:
    """When a node first reported each schedule of a model as in place, by the wall clock."""

    def __init__(self, machine: Machine, model: str) -> None:
        self.machine = machine
        self._model = model
        self._first: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return len(self._first) == len(FOLLOWED_SIZES)

    def _loop(self) -> None:
        while not self._stop.wait(0.1):
            with suppress(OSError):
                for size in FOLLOWED_SIZES:
                    labels = {"model": self._model, "batch_size": str(size)}
                    if self.machine.metric("braid_schedule_latency_seconds", **labels):
                        self._first.setdefault(size, time.time())

    def stop(self) -> Mapping[int, float]:
        self._stop.set()
        self._thread.join()
        return self._first


def identical(stand: Stand, fleet: Fleet, *, requests: int = 32) -> Findings:
    """Compare the outputs of one plan at one batch size on all nodes of a type, bit for bit."""
    findings = Findings()
    _, served = serve(stand, fleet)
    asked = [candidate for candidate in served if len(candidate.x) in (1, 4)][:requests]
    time.sleep(NOTIFIED_SECONDS)
    by_plan: dict[tuple[int, str, int], list[bytes]] = {}
    for machine in fleet.machines:
        with machine.client() as client:
            for number, question in enumerate(asked):
                result = client.infer(question.model, {"x": question.x})
                key = (number, result.plan_id, result.batch_size)
                by_plan.setdefault(key, []).append(result.outputs["y"].tobytes())
    compared = [answers for answers in by_plan.values() if len(answers) > 1]
    plans = sorted({key[1:] for key in by_plan})
    findings.figures |= {"requests compared": len(compared), "plans": len(plans)}
    findings.check(bool(compared), f"no plan answered on two nodes: {plans}")
    differ = sum(len({*answers}) > 1 for answers in compared)
    findings.check(not differ, f"{differ} of {len(compared)} outputs differ: {plans}")
    return findings


def restarts(stand: Stand, fleet: Fleet, *, models: int = 20) -> Findings:
    """Restart all nodes with many models: nothing is measured, all ready within 90 s.

    Then a new node with an empty disk: each model answers within 30 s of its start.
    """
    findings = Findings()
    asked = _register_all(stand, fleet, models)
    before = _written(fleet)
    for machine in fleet.machines:
        findings.check(machine.stop() == 0, f"{machine.name} did not stop well")
    began = time.monotonic()
    fleet.start()
    findings.figures["s until all are ready"] = round(time.monotonic() - began, 1)
    findings.check(time.monotonic() - began <= READY_SECONDS, f"ready after {findings.figures}")
    for machine in fleet.machines:
        _check_all_answer(machine, asked, 60, findings)
    new = fleet.add(1)
    began = time.monotonic()
    new.start(wait=False)
    _check_all_answer(new, asked, NEW_NODE_SECONDS, findings)
    findings.figures["s until a new node answers all"] = round(time.monotonic() - began, 1)
    time.sleep(5)
    measured = sum(node.metric("braid_stage_measurements_total") for node in fleet.machines)
    findings.figures["stages measured after"] = int(measured)
    findings.check(measured == 0, f"{measured:.0f} stages were measured after the restart")
    findings.check(_written(fleet) == before, "schedules or measurements were written")
    return findings


def _register_all(stand: Stand, fleet: Fleet, models: int) -> list[Question]:
    files = [stand.model(branches=2) for _ in range(models)]
    query = "select count(*) from schedules"
    wanted = fleet.value(query) + models * types_of(fleet)

    def register(number: int) -> None:
        name, file = files[number]
        with fleet.machines[number % len(fleet.machines)].client() as client:
            client.register(name, file, planner=PLANNER, timeout_s=JOB_SECONDS)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(register, range(models)))
    done, _ = eventually(lambda: fleet.value(query) >= wanted and not unended(fleet), JOB_SECONDS)
    assert done, fleet.rows("select model, device_keys, state, message from jobs")
    return [questions(name, file, 1)[0] for name, file in files]


def _written(fleet: Fleet) -> tuple[int, int]:
    audit = Audit(fleet)
    return len(audit.writes("schedules")), len(audit.writes("measurements"))


def _check_all_answer(
    machine: Machine, asked: list[Question], seconds: float, findings: Findings
) -> None:
    """Ask each model until it answers right, for so many seconds in all."""
    until = time.monotonic() + seconds
    with machine.client() as client:
        for question in asked:
            left = max(0.0, until - time.monotonic())
            answered, _ = eventually(partial(answers, client, question), left)
            findings.check(answered, f"{machine.name} does not answer {question.model}")


def silence(stand: Stand, fleet: Fleet, *, requests: int = 1000) -> Findings:
    """Count the SQL statements that a node sends during inferences: none.

    The fleet has one machine, and the settings ``STILL``.
    """
    findings = Findings()
    _, asked = serve(stand, fleet)
    fleet.rows(f"alter database \"{fleet.database}\" set log_statement = 'all'")
    fleet.power_off()
    fleet.start()
    [machine] = fleet.machines
    with machine.client() as client:
        eventually(lambda: answers(client, asked[0]), 60)
        time.sleep(2)
        before = stand.postgres.statements(fleet.database)
        for number in range(requests):
            question = asked[number % len(asked)]
            client.infer(question.model, {"x": question.x})
        sent = stand.postgres.statements(fleet.database)[len(before) :]
    findings.figures |= {"inferences": requests, "SQL statements": len(sent)}
    findings.check(not sent, f"statements: {sent[:5]}")
    findings.check(bool(before), "no statement at all was logged")
    return findings
