"""The fleet's own parts: what tests of a fleet believe of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import psutil
import psycopg
import pytest

from braid_client import BraidError
from tests.fleet.machine import Machine
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

pytestmark = pytest.mark.fleet


@pytest.fixture
def machine(machines: Path) -> Iterator[Machine]:
    """A machine with a server that shares nothing."""
    token = machines / "token"
    token.write_text("a token of tests\n")
    machine = Machine(9, machines / "single", [], BRAID_ADMIN_TOKEN_FILE=str(token))
    yield machine
    machine.power_off()


def test_what_postgres_keeps_outlives_a_kill(postgres_server: Postgres) -> None:
    postgres_server.execute("create table kept (number int)")
    postgres_server.execute("insert into kept values (7)")
    postgres_server.stop()
    with pytest.raises(psycopg.OperationalError):
        postgres_server.execute("select 1")

    postgres_server.start()

    assert postgres_server.execute("select number from kept") == [(7,)]


def test_what_s3_keeps_outlives_a_kill(s3_server: S3) -> None:
    obstore.put(s3_server.store(), "kept", b"seven")

    s3_server.stop()
    s3_server.start()

    assert bytes(obstore.get(s3_server.store(), "kept").bytes()) == b"seven"
    assert s3_server.objects()["kept"] == 5


def test_a_machine_dies_whole_and_comes_back(machine: Machine) -> None:
    machine.start()
    processes = [machine.server, *machine.processes()]

    machine.power_off()

    assert not any(process.is_running() for process in processes)
    machine.start()
    assert machine.stop() == 0


def test_a_machine_that_is_cut_off_or_paused_does_not_answer(machine: Machine) -> None:
    machine.start()
    with machine.client() as client:
        assert client.models() == []
        machine.unplug()
        with pytest.raises(BraidError):
            client.models(timeout_s=1)
        machine.replug()
        machine.pause()
        assert {each.status() for each in machine.processes()} == {psutil.STATUS_STOPPED}
        with pytest.raises(BraidError):
            client.models(timeout_s=1)
        machine.resume()
    with machine.client(attempts=20) as client:
        assert client.models(timeout_s=60) == []


def test_a_machine_may_have_another_clock(machine: Machine) -> None:
    machine.start(skew_seconds=3600)

    line = machine.log.splitlines()[0]

    logged = datetime.fromisoformat(line.split()[0])
    assert logged - datetime.now(UTC) > timedelta(minutes=50), line
