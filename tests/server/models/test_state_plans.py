"""Plans follow the state of their device, between two batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from braid.core.device_state import DeviceState
from braid.core.errors import DeviceOutOfMemory
from braid.core.plan import StreamPlan
from braid.core.program import PlanToRun
from braid.core.schedule import SEQUENTIAL, Provenance, Schedule, ScheduleKey
from braid.core.shape_memory import ShapeMemory
from braid.server.devices.executables import Executable
from braid.server.devices.pool import Devices
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import check_request
from braid.server.models.serving_models import ServingModels
from braid.server.models.state_plans import StatePlans
from braid.server.observability.metrics import Metrics
from braid.server.store.serving_config import BatchPolicy
from tests.server.inference.batching import Watcher, settle
from tests.server.inference.test_batcher import (
    SIZE_BYTES,
    FakeDevice,
    array,
    request_of,
    rows_from,
    serve,
)
from tests.server.jobs.fakes import Server

NEAR, FAR = DeviceState(((0, 1),)), DeviceState(((0,), (1,)))


class MovingDevice(FakeDevice):
    """A device whose cores are moved, and which may have no room."""

    software: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.state = NEAR
        self.has_room = True

    async def prepare(self, to_run: PlanToRun, like: Executable | None = None) -> Executable:
        if not self.has_room:
            raise DeviceOutOfMemory("there is no room")
        return await super().prepare(to_run)

    async def let_go(self, digest: str, executables: Any = ()) -> None:
        for ready in executables:
            await self.release(ready)


class Moving:
    """A model that serves on a device with a schedule for each of its states."""

    def __init__(self, server: Server) -> None:
        self.device, self.store = MovingDevice(), server.store
        devices = SimpleNamespace(all=[self.device], named=lambda _: self.device)
        self.models = ServingModels(cast(Devices, devices), Metrics(), BatchPolicy())
        self.lacking: list[ScheduleKey] = []
        self.told: list[Schedule] = []
        services = replace(
            server.services,
            models=self.models,
            devices=[cast(Any, self.device)],
            on_schedule=[lambda model, device, schedule: self.told.append(schedule)],
            on_lacking=lambda model, device, key: self.lacking.append(key),
        )
        self.plans = StatePlans(services, self.models)
        template = serve(self.device, (1,))
        self.model, self.imported = template.model, template._imported

    async def begin(self, *schedules: Schedule) -> None:
        self.models.register(self.model)
        await self.models.serve(self.model, self.imported, "fake")
        for schedule in schedules:
            self.store.put_schedule(schedule)
        await self.models.swap(self.model, "fake", schedules[0])

    async def moved(self, state: DeviceState) -> None:
        self.device.state = state
        await self.plans.follow(cast(Any, self.device))

    @property
    def replica(self) -> ModelReplica:
        return self.models.for_request("fake", "").require().any

    async def infer(self, start: int) -> str:
        """Run one row; returns the plan that answered."""
        (queued,) = self.models.for_request("fake", "").require().all
        x = rows_from(start, 1)
        checked = check_request(queued.replica, request_of(x))
        result = await queued.batcher.submit(queued.replica, checked, Watcher(), None)
        np.testing.assert_array_equal(array(result, "y"), x + 1)
        return result.plan_id

    def schedule(self, state: str, streams: int, *, promoted: bool = True) -> Schedule:
        key = self.imported.schedule_key("fake", 1)
        in_state = replace(key, state="" if state == "near" else state)
        provenance = Provenance(
            measured_us=7.0, sequential_us=9.0, promoted=promoted, state=state, created=state
        )
        return Schedule(in_state, "ios", StreamPlan((), streams), (), (), provenance)


@pytest.fixture
async def moving(tmp_path: Path) -> AsyncIterator[Moving]:
    server = Server(tmp_path / "store")
    yield Moving(server)
    server.store.close()


async def test_plans_are_switched_both_ways_under_load(moving: Moving) -> None:
    near, far = moving.schedule("near", 1), moving.schedule("far", 2)
    await moving.begin(near, far)
    answered: list[str] = []
    is_over = False

    async def caller(number: int) -> None:
        count = 0
        while not is_over:
            answered.append(await moving.infer(1000 * number + count))
            count += 1

    callers = [asyncio.create_task(caller(number)) for number in range(4)]
    for state, schedule in [(FAR, far), (NEAR, near)] * 10:
        await moving.moved(state)
        before = len(answered)
        async with asyncio.timeout(120):
            while len(answered) < before + 12:  # noqa: ASYNC110  (those being formed have run)
                await asyncio.sleep(0)
        assert answered[-1] == schedule.plan_id
    is_over = True
    await asyncio.gather(*callers)

    assert {*answered} == {near.plan_id, far.plan_id}
    assert moving.device.prepared == 3, "sequential, near, far: each once"
    assert moving.device.released == [1]
    assert moving.told == [far, near] * 10
    assert moving.lacking == []


async def test_a_plan_of_another_state_serves_on_where_there_is_none_yet(moving: Moving) -> None:
    near = moving.schedule("near", 1)
    await moving.begin(near)

    await moving.moved(FAR)

    assert await moving.infer(1) == near.plan_id
    assert moving.lacking == [replace(near.key, state="far")]
    assert (moving.told, moving.device.prepared) == ([], 2)


async def test_where_no_plan_is_faster_in_a_state_the_sequential_one_runs(moving: Moving) -> None:
    near, far = moving.schedule("near", 2), moving.schedule("far", 2, promoted=False)
    await moving.begin(near, far)

    plans = []
    for state in (FAR, NEAR, FAR, NEAR):
        await moving.moved(state)
        plans.append(await moving.infer(1))

    assert plans == [SEQUENTIAL, near.plan_id] * 2
    assert moving.device.prepared == 3, "sequential twice: it had gone when near began to serve"


async def test_equal_plans_of_two_states_are_one_executable(moving: Moving) -> None:
    await moving.begin(moving.schedule("near", 2), moving.schedule("far", 2))

    for state in (FAR, NEAR, FAR):
        await moving.moved(state)
        await moving.infer(1)

    assert moving.device.prepared == 2
    assert moving.replica.spare_plans.size_bytes == 0


async def test_what_is_kept_for_another_state_is_counted_and_goes_if_its_memory_is_needed(
    moving: Moving,
) -> None:
    moving.device.shape_memory = ShapeMemory(2 * SIZE_BYTES)
    near, far = moving.schedule("near", 1), moving.schedule("far", 2)
    await moving.begin(near, far)
    await moving.moved(FAR)
    assert moving.replica.spare_plans.size_bytes == SIZE_BYTES
    assert moving.device.shape_memory.held_bytes == SIZE_BYTES

    class Other:
        def drop(self, key: object) -> None:
            raise AssertionError("it holds less")

    moving.device.shape_memory.keep(Other(), "a", SIZE_BYTES - 1)
    moving.device.shape_memory.keep(Other(), "b", 2)
    await settle()

    assert moving.replica.spare_plans.size_bytes == 0
    assert moving.device.released == [1, 2]
    await moving.moved(NEAR)
    assert await moving.infer(1) == near.plan_id
    assert moving.device.prepared == 4, "prepared again"


async def test_a_plan_stays_if_there_is_no_room_for_that_of_the_present_state(
    moving: Moving,
) -> None:
    near, far = moving.schedule("near", 1), moving.schedule("far", 2)
    await moving.begin(near, far)
    moving.device.has_room = False

    await moving.moved(FAR)
    assert await moving.infer(1) == near.plan_id

    moving.device.has_room = True
    await moving.moved(FAR)
    assert await moving.infer(1) == far.plan_id


async def test_the_end_of_a_model_releases_the_plans_of_all_states(moving: Moving) -> None:
    await moving.begin(moving.schedule("near", 1), moving.schedule("far", 2))
    await moving.moved(FAR)

    await moving.models.remove("fake", 1)

    assert sorted(moving.device.released) == [1, 2, 3]
    assert moving.device.shape_memory.held_bytes == 0


async def test_a_schedule_that_is_not_promoted_any_more_lets_the_sequential_plan_run(
    moving: Moving,
) -> None:
    near = moving.schedule("near", 2)
    await moving.begin(near)
    assert await moving.infer(1) == near.plan_id

    again = moving.schedule("near", 2, promoted=False)
    await moving.models.use_sequential(moving.model, "fake", again)
    await settle()

    assert await moving.infer(1) == SEQUENTIAL
    assert moving.device.released == [1, 2], "nothing is kept of the same state"
