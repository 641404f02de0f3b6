"""Batch sizes of registrations that ask for none: those that pay serve, beside 1."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid.compiler.imported_model import ImportedModel, read_imported
from braid.compiler.larger_sizes import MOST_S, LargerSizes
from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest
from braid.core.margins import SIZE_GAIN
from braid.core.plan import sequential_plan
from braid.core.schedule import Contender, Provenance, Schedule
from braid.server.store.records import JobRecord, JobStatus, ModelVersion
from tests.clock import SetClock
from tests.server.jobs.fakes import Server, template, write_artefact
from tests.server.jobs.watching import registered, until_ended

PAYS_TO_16 = {2: 100.0, 16: 400.0, 32: 790.0, 64: 1580.0}
"""Latency of the sequential plan by batch size; one row takes 90 us."""


def sizes_that_serve(server: Server, name: str = "lenet") -> list[int]:
    return sorted(size for model, _, size in server.models.plans if model == name)


async def registered_with_sizes(server: Server, name: str = "lenet") -> JobRecord:
    """Register without sizes; returns the job that made it READY, once the next one has ended."""
    job = await registered(server, name=name, sizes=())
    for each in await server.runner.list(name):
        await until_ended(server, each.id)
    return job


def stored(server: Server, model: ModelVersion) -> list[Schedule]:
    return server.store.schedules_for(model.sha256, model.options, "fake-cpu")


async def test_sizes_that_pay_serve_beside_one_row(server: Server) -> None:
    server.device.sequential_us = PAYS_TO_16

    job = await registered_with_sizes(server)

    assert (job.state, job.message) == (JobStatus.READY, "")
    assert sizes_that_serve(server) == [1, 2, 16]
    assert server.planner.calls == 1, "larger sizes are not searched yet"
    assert len(await server.runner.list("lenet")) == 2, "READY does not wait for them"
    assert [size for size, _ in server.observer.chosen] == [1, 1, 2, 16]


async def test_sizes_that_pay_are_scheduled_in_full_when_that_is_asked_for(server: Server) -> None:
    server.device.sequential_us = PAYS_TO_16
    await registered_with_sizes(server)

    job = await server.runner.schedule_again("lenet", 1)
    await until_ended(server, job.id)

    assert server.planner.calls == 1 + 3
    assert {1, 2, 16} <= {*sizes_that_serve(server)}


async def test_sizes_that_were_asked_for_are_all_there_is(server: Server) -> None:
    server.device.sequential_us = PAYS_TO_16

    await registered(server, sizes=(1,))

    assert sizes_that_serve(server) == [1]


async def test_sizes_that_pay_are_found_again_and_not_measured_again(server: Server) -> None:
    server.device.sequential_us = PAYS_TO_16
    await registered_with_sizes(server)
    compared = len(server.device.compared)

    await registered_with_sizes(server, "other")

    assert sizes_that_serve(server, "other") == [1, 2, 16]
    assert len(server.device.compared) - compared == 2  # 32 and 64, which do not pay


async def test_what_a_larger_size_fails_of_leaves_the_model_scheduled(server: Server) -> None:
    server.device.fails_at = 2

    job = await registered_with_sizes(server)

    assert (job.state, job.message) == (JobStatus.READY, "")
    assert sizes_that_serve(server) == [1]


async def test_the_same_bytes_under_another_name_keep_batch_sizes_of_their_own(
    server: Server,
) -> None:
    sizes = {"few": (1, 3), "more": (1, 3, 5), "four": (4,), "usual": ()}
    made = {name: await server.register(name, sizes=of) for name, of in sizes.items()}
    for each in made.values():
        assert (await until_ended(server, each.job.id))[-1].state is JobStatus.READY

    found = {
        name: {schedule.key.batch_size for schedule in stored(server, each.model)}
        for name, each in made.items()
    }
    assert {name: found[name] for name in ("few", "more", "four")} == {
        "few": {1, 3},
        "more": {1, 3, 5},
        "four": {4},
    }
    assert not found["usual"] & {3, 5}, "another registration asked for these"
    with pytest.raises(InvalidRequest, match="batch sizes 1, 3, not for 5"):
        await server.runner.schedule_again("few", 1, batch_size=5)


async def test_a_model_that_takes_one_row_gets_no_larger_sizes(server: Server) -> None:
    server.importer.graph, server.importer.batched = template(batch=1), False

    await registered_with_sizes(server)

    assert sizes_that_serve(server) == [1]


@pytest.fixture
def imported(tmp_path: Path) -> ImportedModel:
    write_artefact(tmp_path / "artefact", "0" * 64, template())
    return read_imported("0" * 64, ModelOptions(), tmp_path / "artefact")


def measured(imported: ImportedModel, size: int, us: float, row_bytes: int = 0) -> Schedule:
    candidate = Contender("sequential", latency_us=us, activation_bytes=row_bytes)
    return Schedule(
        imported.schedule_key("fake-cpu", size),
        "sequential",
        sequential_plan(4),
        (),
        tuple("abcd"),
        Provenance(measured_us=us, candidates=(candidate,)),
    )


def tried(
    imported: ImportedModel,
    latencies_us: Mapping[int, float],
    step_s: float = 0.0,
    row_bytes: int = 0,
) -> list[int]:
    """Sizes that are measured, each for ``step_s``; a row takes what it does in the size below."""
    clock = SetClock()
    sizes = LargerSizes(imported, measured(imported, 1, latencies_us[1], row_bytes), clock)
    seen = []
    while (size := sizes.next()) is not None:
        clock.now += step_s
        seen.append(size)
        known = max(known for known in latencies_us if known <= size)
        sizes.tried(measured(imported, size, latencies_us[known] * size / known))
    return seen


def cheaper(us: float, most: int = 1024) -> dict[int, float]:
    """Twice the rows take 1.3 times as long, up to ``most`` rows."""
    return {2**power: us * 1.3**power for power in range(most.bit_length())}


HARDLY = {1: 100.0, 2: 100.0, 16: 102.0, 128: 104.0, 1024: 106.0, 4096: 110.0}


@pytest.mark.parametrize(
    ("latencies_us", "how", "sizes"),
    [
        (cheaper(30_000.0), {}, [2, 4]),  # 50.7 ms, and twice as much is too long
        (cheaper(100.0), {"row_bytes": 20 << 20}, [2, 4]),
        (cheaper(100.0, 4096), {"step_s": MOST_S / 4}, [2, 4, 8]),
        (cheaper(100.0, 4096), {}, [2**power for power in range(1, 13)]),
        (HARDLY, {}, [2, 16, 128, 1024, 4096]),
        ({1: 100.0, 2: 110.0, 16: 120.0, 128: 500.0}, {}, [2, 16, 128, 256, 512]),
    ],
    ids=["too long", "too much memory", "the time is up", "to the largest", "hardly", "between"],
)
def test_sizes_are_tried_as_far_as_they_may_pay(
    imported: ImportedModel, latencies_us: Mapping[int, float], how: Any, sizes: list[int]
) -> None:
    assert tried(imported, latencies_us, **how) == sizes


def test_a_size_pays_whose_rows_take_clearly_less(imported: ImportedModel) -> None:
    sizes = LargerSizes(imported, measured(imported, 1, 100.0))
    least = 2 * 100.0 * (1 - SIZE_GAIN)

    assert sizes.pays(measured(imported, 2, least - 0.1))
    assert not sizes.pays(measured(imported, 2, least + 0.1))
    refused = measured(imported, 2, 1.0)
    provenance = replace(refused.provenance, promoted=False, reason="wrong")
    assert not sizes.pays(replace(refused, provenance=provenance))
