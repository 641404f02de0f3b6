from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.core.graph import OpGraph
from braid.core.program import ProgramKey
from braid.server.devices.pool import Devices
from braid.server.models.queries import ModelQueries
from tests.server.jobs.fakes import FakeDevice, Server


class DescribingDevice(FakeDevice):
    """Counts how often it binds a program for a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.described = 0

    async def describe(self, program: ProgramKey) -> OpGraph:
        self.described += 1
        return self.static_graph(program)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "store")
    await server.runner.start()
    made = await server.register()
    async for _ in server.runner.watch(made.job.id):
        pass
    yield server
    await server.stop()


def queries_of(server: Server, device: DescribingDevice) -> ModelQueries:
    devices = cast(Devices, SimpleNamespace(all=[device], named=lambda _: device))
    return ModelQueries(server.store, server.services.files, cast(Any, server.models), devices)


async def test_a_schedule_is_drawn_without_its_device(server: Server) -> None:
    queries = queries_of(server, device := DescribingDevice())
    model = server.store.find_model("lenet", 1)

    placed = await queries.schedule(model, 1)
    graph = await queries.graph(model, placed)

    assert tuple(each.name for each in graph.operators) == placed.schedule.unit_names
    assert (device.described, device.loads) == (0, [])


async def test_a_device_is_asked_once_for_the_graph_of_a_schedule_of_before(server: Server) -> None:
    queries = queries_of(server, device := DescribingDevice())
    model = server.store.find_model("lenet", 1)
    placed = await queries.schedule(model, 1)
    stored = await queries.graph(model, placed)
    server.store.forget_schedule(placed.schedule.key)
    server.store.put_schedule(placed.schedule)

    drawn = [await queries.graph(model, placed) for _ in range(2)]

    assert drawn == [stored, stored]
    assert device.described == 1
