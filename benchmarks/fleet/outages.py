"""PostgreSQL away, S3 away, S3 full: what serves goes on, and nothing is left half done."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import grpc

from benchmarks.fleet.registering import unended
from benchmarks.fleet.stand import PLANNER, Findings, Stand, eventually
from braid_client import BraidError, Client
from campaigns.traffic import Question, Tally, Traffic, questions
from tests.fleet.fleet import Fleet
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

AWAY_SECONDS = 60.0
WELL_SECONDS = 10.0
JOB_SECONDS = 300.0
_NOT_READY = "select model, state, message from jobs where state <> 'READY'"


def postgres_away(stand: Stand, fleet: Fleet, *, seconds: float = AWAY_SECONDS) -> Findings:
    """Stop PostgreSQL under load: 0 inference errors, admin calls UNAVAILABLE, well 10 s after."""
    return _away(stand, fleet, stand.postgres, seconds)


def s3_away(stand: Stand, fleet: Fleet, *, seconds: float = AWAY_SECONDS) -> Findings:
    """Stop S3 under load: 0 inference errors, uploads UNAVAILABLE, all well 10 s after."""
    return _away(stand, fleet, stand.s3, seconds)


def _away(stand: Stand, fleet: Fleet, server: Postgres | S3, seconds: float) -> Findings:
    findings = Findings()
    file, asked = serve(stand, fleet)
    load = [Traffic(node.address, 2, asked, node.number, 0.02) for node in fleet.machines]
    server.stop()
    _check_refused(stand, fleet, findings, seconds, is_reading_too=server is stand.postgres)
    server.start()
    _check_well(fleet, findings, file)
    _check_load(load, findings)
    return findings


def s3_full(stand: Stand, fleet: Fleet) -> Findings:
    """Fill S3: a registration is RESOURCE_EXHAUSTED and leaves neither a row nor an object."""
    findings = Findings()
    file, _ = serve(stand, fleet)
    rows = fleet.rows("select name, version from models order by 1, 2")
    objects = fleet.s3.objects().keys()
    stand.s3.fill()
    try:
        codes = [
            _code_of_registering(machine.client(), *stand.model()) for machine in fleet.machines
        ]
        findings.figures["answer"] = " ".join(codes)
        findings.check({*codes} == {"RESOURCE_EXHAUSTED"}, f"answers of a full S3: {codes}")
        left = fleet.s3.objects().keys() - objects
        findings.check(
            fleet.rows("select name, version from models order by 1, 2") == rows,
            "a model's row is left",
        )
        findings.check(not left, f"objects are left: {left}")
    finally:
        stand.s3.make_room()
    _check_well(fleet, findings, file)
    return findings


@cache
def serve(stand: Stand, fleet: Fleet) -> tuple[Path, list[Question]]:
    """Register a model once, and wait until every node answers it and all jobs have ended.

    Returns its file and questions for it.
    """
    name, file = stand.model(branches=2)
    with fleet.machines[0].client() as client:
        client.register(
            name, file, planner=PLANNER, batch_sizes=[1, 4], wait=True, timeout_s=JOB_SECONDS
        )
    eventually(lambda: not unended(fleet), JOB_SECONDS)
    asked = questions(name, file)
    for machine in fleet.machines:
        with machine.client() as client:
            answered, _ = eventually(partial(answers, client, asked[0]), 60)
            assert answered, f"{machine.name} does not answer {name}"
    return file, asked


def answers(client: Client, question: Question) -> bool:
    with suppress(BraidError):
        result = client.infer(question.model, {"x": question.x}, timeout_s=10)
        return question.is_answered_by(result.outputs["y"])
    return False


def _check_refused(
    stand: Stand, fleet: Fleet, findings: Findings, seconds: float, *, is_reading_too: bool
) -> None:
    """Make admin calls until ``seconds`` are over: UNAVAILABLE each."""
    until, number = time.monotonic() + seconds, 0
    slowest = 0.0
    codes: dict[str, int] = {}
    while time.monotonic() < until:
        machine = fleet.machines[number % len(fleet.machines)]
        calls: list[Callable[[Client], str]] = [
            lambda client: _code_of_registering(client, *stand.model())
        ]
        if is_reading_too:
            calls.append(_code_of_deleting)
        with machine.client() as client:
            began = time.monotonic()
            code = calls[number % len(calls)](client)
            slowest = max(slowest, time.monotonic() - began)
        codes[code] = codes.get(code, 0) + 1
        number += 1
        time.sleep(0.5)
    findings.figures |= {"admin calls": number, "slowest refusal, s": round(slowest, 2)}
    findings.check({*codes} == {"UNAVAILABLE"}, f"admin calls while it was away: {codes}")


def _code_of_registering(client: Client, name: str, file: Path) -> str:
    try:
        client.register(name, file, planner=PLANNER, timeout_s=30)
    except BraidError as error:
        return _name(error)
    return "OK"


def _code_of_deleting(client: Client) -> str:
    try:
        client.delete("no-such-model", timeout_s=30)
    except BraidError as error:
        return _name(error)
    return "OK"


def _name(error: BraidError) -> str:
    return (error.code or grpc.StatusCode.UNKNOWN).name


def _check_well(fleet: Fleet, findings: Findings, file: Path) -> None:
    """Check that each node takes a registration within 10 s, and that every job ends READY.

    ``file`` was scheduled before, so that these jobs are short.
    """
    slowest, began = 0.0, time.time()
    for machine in fleet.machines:
        with machine.client() as client:
            codes: list[str] = []

            name = f"{file.stem}-on-{machine.name}-{int(began)}"

            def look(client: Client = client, name: str = name, codes: list[str] = codes) -> bool:
                codes.append(_code_of_registering(client, name, file))
                return codes[-1] == "OK"

            is_well, took = eventually(look, WELL_SECONDS)
            slowest = max(slowest, took)
            findings.check(is_well, f"{machine.name} is not well after {took:.1f} s: {codes[-1:]}")
    findings.figures["s until well"] = round(slowest, 2)
    eventually(lambda: not unended(fleet), JOB_SECONDS)
    bad = fleet.rows(f"{_NOT_READY} and updated_unix >= {began}")
    findings.check(not bad and not unended(fleet), f"jobs: {bad}")


def _check_load(load: list[Traffic], findings: Findings) -> None:
    tallies: list[Tally] = [traffic.stop() for traffic in load]
    outcomes: dict[str, int] = {}
    for tally in tallies:
        for outcome, times in tally.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + times
    findings.figures["inferences"] = outcomes.get("OK", 0)
    findings.figures["inference errors"] = sum(outcomes.values()) - outcomes.get("OK", 0)
    findings.check(outcomes.keys() == {"OK"}, f"inferences: {outcomes}")
