from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.fleet.machine import Machine

pytestmark = pytest.mark.fleet


@pytest.fixture
def machine(machines: Path) -> Iterator[Machine]:
    """A machine with a server that shares nothing."""
    token = machines / "token"
    token.write_text("a token of tests\n")
    machine = Machine(9, machines / "single", [], BRAID_ADMIN_TOKEN_FILE=str(token))
    yield machine
    machine.power_off()


def test_a_machine_may_have_another_clock(machine: Machine) -> None:
    machine.start(skew_seconds=3600)

    line = machine.log.splitlines()[0]

    logged = datetime.fromisoformat(line.split()[0])
    assert logged - datetime.now(UTC) > timedelta(minutes=50), line
