"""Lengths follow from requests: counted, stored, chosen in idle time, scheduled, and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from braid.core.inputs import ShapeClass
from braid.core.measurement import PlanMeasurement
from braid.core.padding import BY_REQUEST, ZEROS, PaddedAxis, PaddedInput
from braid.core.tensor import TensorType
from braid.scheduler.options import PlannerSettings
from braid.server.inference.choose_lengths import LEAST_ROWS
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.registration import serve_again
from braid.server.models.length_choices import LengthChoices
from braid.server.store.records import SeenLengths
from tests.server.fleet.nodes import Node, until
from tests.server.jobs.fakes import a_moment, template

UP_TO = 200
AXIS = PaddedAxis(
    *("length", True, {"x": PaddedInput(1, ZEROS)}, {"y": 1}, UP_TO, 0.0, BY_REQUEST, "")
)


class Served:
    """A node with a model of any length, whose plans take 45 % of what its session does."""

    def __init__(self, name: str, folder: Path) -> None:
        self.node = Node(name, folder)
        self.node.server.importer.graph = template(extent="length")
        self.node.server.importer.padding = (AXIS,)
        self.node.device.in_runtime = PlanMeasurement(200.0, 0.01, 10, (0.5,) * 9, 1e-6, 1e-6)
        self.is_quiet: Callable[[], Awaitable[object]] = a_moment
        self.choices = LengthChoices(
            self.node.store, self.node.models.all_replicas, lambda: self.node.runner,
            lambda: self.is_quiet(), lambda _: a_moment(),
        )  # fmt: skip

    @property
    def replica(self) -> ModelReplica:
        (replica,) = self.node.models.all_replicas()
        return replica

    def answer(self, rows: Mapping[int, int]) -> None:
        """Requests of some lengths, of which the session takes 10 us a word."""
        for length, count in rows.items():
            shape_class = ShapeClass((("x", TensorType("FP32", (1, length))),))
            self.replica.buckets.count(shape_class, count, shape_class)
            self.replica.shape_times.observe(length, length * 1e-5)

    async def look(self) -> tuple[str, ...]:
        """Look once, to the end of a job; returns the lengths that are scheduled then."""
        await self.choices.keep()
        await self.choices.choose()
        await until(lambda: not self.node.runner.has_jobs)
        return tuple(text.removeprefix("length=") for text in self.replica.scheduled)


OFTEN = {10: LEAST_ROWS, 11: 1, 60: LEAST_ROWS}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Served, Served]]:
    """Servers a and b of one database that serve what a registered."""
    a, b = Served("a", tmp_path), Served("b", tmp_path)
    for served in (a, b):
        await served.node.start()
    portfolio = PlannerSettings("portfolio")
    await a.node.register("net", b"one", shapes={"x": (1, 150)}, planner=portfolio)
    await b.node.look()
    yield a, b
    for served in (a, b):
        await served.node.stop()


async def test_lengths_that_come_often_are_scheduled_and_the_other_server_follows(
    nodes: tuple[Served, Served],
) -> None:
    a, b = nodes
    a.answer(OFTEN)

    assert await a.look() == ("150", "10", "60")
    assert {key.shapes for key in a.replica.chosen} == {"length=150", "length=10", "length=60"}

    assert await b.look() == ("150", "10", "60")
    await b.node.look()
    assert a.replica.chosen == b.replica.chosen
    assert a.node.device.measured
    assert not b.node.device.measured


async def test_under_requests_without_end_lengths_are_stored_and_none_are_chosen(
    nodes: tuple[Served, Served],
) -> None:
    a, _ = nodes
    never, a.is_quiet = asyncio.Event(), lambda: never.wait()
    looking = asyncio.create_task(a.choices.run())

    def stored(count: int) -> bool:
        return a.replica.seen_lengths.rows.get(10) == count

    try:
        for count in (LEAST_ROWS, 2 * LEAST_ROWS):
            a.answer({10: LEAST_ROWS, 11: 1})
            await until(partial(stored, count))
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    assert tuple(a.replica.scheduled) == ("length=150",)


async def test_requests_of_all_servers_count(nodes: tuple[Served, Served]) -> None:
    a, b = nodes
    a.answer({10: LEAST_ROWS // 2})
    assert await a.look() == ("150",)

    b.answer({10: LEAST_ROWS // 2, 11: 1})

    assert await b.look() == ("150", "10")


async def test_few_requests_change_nothing(
    nodes: tuple[Served, Served],
) -> None:
    a, _ = nodes
    a.answer({10: LEAST_ROWS - 2, 11: 1})
    assert await a.look() == ("150",)
    a.answer({10: 1})
    assert await a.look() == ("150", "10")


async def test_lengths_stay_unless_others_save_enough(nodes: tuple[Served, Served]) -> None:
    a, _ = nodes
    a.answer(OFTEN)
    await a.look()
    jobs = len(a.node.store.jobs())

    a.answer({10: LEAST_ROWS, 60: LEAST_ROWS, 62: 20})
    assert await a.look() == ("150", "10", "60")
    assert len(a.node.store.jobs()) == jobs

    a.answer({92: 20 * LEAST_ROWS})
    assert "92" in await a.look()


async def test_plans_of_a_length_that_is_not_chosen_any_more_go(
    nodes: tuple[Served, Served],
) -> None:
    a, _ = nodes
    a.answer({10: LEAST_ROWS, 11: 1})
    await a.look()
    a.answer(dict.fromkeys((72, 80, 92, 100), 100 * LEAST_ROWS))

    assert await a.look() == ("150", "72", "80", "92", "100")
    assert "length=10" not in {key.shapes for key in a.replica.chosen}


async def test_a_restarted_server_serves_the_chosen_lengths(
    nodes: tuple[Served, Served], tmp_path: Path
) -> None:
    a, _ = nodes
    a.answer(OFTEN)
    await a.look()
    again = Served("c", tmp_path)
    (model,) = again.node.store.models()
    again.node.models.restoring(model)

    await serve_again(model, again.node.services)

    assert again.replica.chosen == a.replica.chosen
    assert (await again.look(), again.choices.seen["net", 1].rows) == (("150", "10", "60"), OFTEN)
    again.node.store.close()


async def test_padding_that_was_wrong_is_forbidden_on_all_servers_and_after_a_restart(
    nodes: tuple[Served, Served], tmp_path: Path
) -> None:
    a, b = nodes
    a.answer(OFTEN)
    await a.look()
    await b.look()
    a.replica.forbid_padding("an error of 0.5")

    await a.look()
    await b.look()
    again = Served("c", tmp_path)
    (model,) = again.node.store.models()
    again.node.models.restoring(model)
    await serve_again(model, again.node.services)

    for server in (a, b, again):
        (axis,) = server.replica.padding
        assert (axis.exact, axis.reason) == (False, "an error of 0.5")
        assert server.replica.padding_check.failure == "an error of 0.5"
        assert not server.replica.follows_lengths
        assert server.replica.scheduled_lengths == (10, 60, 150)
    again.node.store.close()


async def test_a_deleted_version_is_forgotten(nodes: tuple[Served, Served]) -> None:
    a, _ = nodes
    model = a.replica.model
    a.answer(OFTEN)
    a.replica.forbid_padding("an error of 0.5")
    await a.look()
    assert a.node.store.find_lengths(model).padding_failure

    a.node.store.delete_model("net", 1)

    assert a.node.store.find_lengths(model) == SeenLengths()
