"""Campaigns of ``benchmarks.fleet``, each once in one fleet, with shorter outages.

Campaigns with wrong clocks are run by ``benchmarks.fleet``. ``make test-fleet`` leaves out what is
slow, which ``make test-fleet-all`` runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from benchmarks.fleet import following, outages, owners, registering, uploads
from benchmarks.fleet.stand import Findings, Stand
from tests.fleet.fleet import Fleet
from tests.fleet.machine import Machine

pytestmark = pytest.mark.fleet

OUTAGE_SECONDS = 6.0


@pytest.fixture(scope="module")
def fleet(stand: Stand) -> Iterator[Fleet]:
    """Three nodes that run; who ends one starts it again."""
    with stand.fleet(environment=uploads.SWEPT_SOON) as fleet:
        yield fleet


def is_well(seen: Findings) -> None:
    """Fail with all that must not have been."""
    assert not seen.broken, f"{seen.broken}; {seen.figures}"


def test_each_key_is_profiled_once(stand: Stand, fleet: Fleet) -> None:
    is_well(registering.keys_once(stand, fleet, models=2, sizes=(1, 2)))


@pytest.mark.slow
def test_outputs_are_bit_identical(stand: Stand, fleet: Fleet) -> None:
    is_well(following.identical(stand, fleet))


def test_a_schedule_serves_on_all_nodes_of_its_type(stand: Stand, fleet: Fleet) -> None:
    is_well(following.schedules(stand, fleet, models=1))


def test_a_job_outlives_its_owner(stand: Stand, fleet: Fleet) -> None:
    is_well(owners.killed(stand, fleet, random.Random(0), "PROFILING", has_peer=True))


@pytest.mark.slow
def test_an_upload_that_was_cut_off_leaves_nothing(stand: Stand, fleet: Fleet) -> None:
    is_well(uploads.killed(stand, fleet, random.Random(0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "come"), [(Machine.pause, Machine.resume), (Machine.unplug, Machine.replug)]
)
def test_late_writes_are_refused(
    stand: Stand, fleet: Fleet, leave: owners.Act, come: owners.Act
) -> None:
    is_well(owners.away(stand, fleet, random.Random(0), leave, come, has_peer=True))


@pytest.mark.slow
def test_everything_serves_while_postgres_is_away(stand: Stand, fleet: Fleet) -> None:
    is_well(outages.postgres_away(stand, fleet, seconds=OUTAGE_SECONDS))


@pytest.mark.slow
def test_everything_serves_while_s3_is_away(stand: Stand, fleet: Fleet) -> None:
    is_well(outages.s3_away(stand, fleet, seconds=OUTAGE_SECONDS))


@pytest.mark.slow
def test_a_full_s3_leaves_nothing_half_done(stand: Stand, fleet: Fleet) -> None:
    is_well(outages.s3_full(stand, fleet))


@pytest.mark.slow
def test_a_restart_and_a_new_node_measure_nothing(stand: Stand, fleet: Fleet) -> None:
    is_well(following.restarts(stand, fleet, models=2))


@pytest.mark.slow
def test_versions_added_by_several_nodes_at_once_are_all_there(stand: Stand, fleet: Fleet) -> None:
    is_well(registering.versions(stand, fleet))
