from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.core.errors import ScheduleNotFound
from braid.server.devices.pool import Devices
from braid.server.models.queries import ModelQueries
from tests.server.jobs.fakes import FakeDevice, Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "store")
    await server.runner.start()
    made = await server.register()
    async for _ in server.runner.watch(made.job.id):
        pass
    yield server
    await server.stop()


def queries_of(server: Server, device: FakeDevice) -> ModelQueries:
    devices = cast(Devices, SimpleNamespace(all=[device], named=lambda _: device))
    return ModelQueries(server.store, cast(Any, server.models), devices)


async def test_a_schedule_is_drawn_without_its_device(server: Server) -> None:
    queries = queries_of(server, device := FakeDevice())
    model = server.store.find_model("lenet", 1)

    placed = await queries.schedule(model, 1)
    graph = await queries.graph(placed.schedule)

    assert tuple(each.name for each in graph.operators) == placed.schedule.unit_names
    assert device.loads == []


async def test_a_schedule_without_a_graph_says_how_to_get_one(server: Server) -> None:
    queries = queries_of(server, FakeDevice())
    model = server.store.find_model("lenet", 1)
    placed = await queries.schedule(model, 1)
    server.store.forget_schedule(placed.schedule.key)
    server.store.put_schedule(placed.schedule)

    with pytest.raises(ScheduleNotFound, match="braid schedule again"):
        await queries.graph(placed.schedule)
