"""Campaigns of ``benchmarks.fleet``, each once in one fleet, with shorter outages.

Campaigns with wrong clocks are run by ``benchmarks.fleet``. ``make test-fleet`` leaves out what is
slow, which ``make test-fleet-all`` runs.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from benchmarks.fleet import following, outages, owners, registering, uploads
from benchmarks.fleet.stand import Findings, Stand
from tests.fleet.fleet import Fleet
from tests.fleet.machine import Machine

pytestmark = pytest.mark.fleet

OUTAGE_SECONDS = 6.0

Campaign = Callable[[Stand, Fleet], Findings]


@pytest.fixture(scope="module")
def fleet(stand: Stand) -> Iterator[Fleet]:
    """Three nodes that run; who ends one starts it again."""
    with stand.fleet(environment=uploads.SWEPT_SOON) as fleet:
        yield fleet


def late(leave: owners.Act, come: owners.Act) -> Campaign:
    """Writes of a node that stood still, or was cut off, are refused."""

    def run(stand: Stand, fleet: Fleet) -> Findings:
        return owners.away(stand, fleet, random.Random(0), leave, come, has_peer=True)

    return run


CAMPAIGNS: dict[str, Campaign] = {
    "each key is profiled once": partial(registering.keys_once, models=2, sizes=(1, 2)),
    "a schedule serves on all nodes of its type": partial(following.schedules, models=1),
    "a job outlives its owner": partial(
        owners.killed, chance=random.Random(0), state="PROFILING", has_peer=True
    ),
}
SLOW: dict[str, Campaign] = {
    "outputs are bit-identical": following.identical,
    "an upload that was cut off leaves nothing": partial(uploads.killed, chance=random.Random(0)),
    "late writes are refused: it stood still": late(Machine.pause, Machine.resume),
    "late writes are refused: it was cut off": late(Machine.unplug, Machine.replug),
    "all serves while PostgreSQL is away": partial(outages.postgres_away, seconds=OUTAGE_SECONDS),
    "all serves while S3 is away": partial(outages.s3_away, seconds=OUTAGE_SECONDS),
    "a full S3 leaves nothing half done": outages.s3_full,
    "a restart and a new node measure nothing": partial(following.restarts, models=2),
    "versions that several nodes add at once are all there": registering.versions,
}


@pytest.mark.parametrize(
    "run",
    [
        *(pytest.param(run, id=name) for name, run in CAMPAIGNS.items()),
        *(pytest.param(run, id=name, marks=pytest.mark.slow) for name, run in SLOW.items()),
    ],
)
def test_nothing_happens_that_must_not(stand: Stand, fleet: Fleet, run: Campaign) -> None:
    seen = run(stand, fleet)

    assert not seen.broken, f"{seen.broken}; {seen.figures}"
