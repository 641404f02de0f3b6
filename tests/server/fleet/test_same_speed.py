"""A schedule that another node made is timed once where it is taken over, and judged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from braid.core.measurement import PlanMeasurement
from braid.server.fleet.metrics import FollowMetrics
from braid.server.fleet.same_speed import SameSpeed
from tests.server.fleet.nodes import Node, until


class Counts(FollowMetrics):
    """Counts schedules that are off, by device."""

    def __init__(self) -> None:
        self.off: Counter[str] = Counter()

    def is_off_speed(self, device: str) -> None:
        self.off[device] += 1


class Speeds:
    """A node that has made a schedule of 90 us, and one that follows and times it."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b = Node("a", folder), Node("b", folder)
        self.counts = Counts()
        self.same_speed = SameSpeed(self.b.services, self.b.models, self.counts)
        self.timing = asyncio.create_task(self.same_speed.run())

    async def start(self) -> None:
        for node in (self.a, self.b):
            await node.start()
        await self.a.register("net", b"one")
        await self.b.look()

    async def time(self) -> None:
        """Time what was taken over, and wait until that is done."""
        for schedule in self.b.taken_over:
            self.same_speed.taken_over(self.b.version("net", 1), "cpu", schedule)
        await until(lambda: self.same_speed.is_idle)

    @property
    def expected_us(self) -> float:
        """Latency that batches of one row are formed by."""
        replica = self.b.models.all_served()[0]
        return replica.latencies(replica.profiled).seconds(1) * 1e6

    @property
    def message(self) -> str:
        return self.b.models.as_seen(self.b.version("net", 1)).message

    async def stop(self) -> None:
        self.timing.cancel()
        with suppress(asyncio.CancelledError):
            await self.timing
        await self.b.stop()
        await self.a.stop()


@pytest.fixture
async def speeds(tmp_path: Path) -> AsyncIterator[Speeds]:
    speeds = Speeds(tmp_path)
    await speeds.start()
    yield speeds
    await speeds.stop()


def taking(latency_us: float, speedup: float = 1.0) -> PlanMeasurement:
    return PlanMeasurement(latency_us, 0.01, 10, (speedup,) * 9, 1e-6, 1e-6)


async def test_a_schedule_that_is_as_fast_as_recorded_is_timed_once(speeds: Speeds) -> None:
    speeds.b.device.others = taking(110.0)  # 22 % more

    await speeds.time()
    await speeds.time()

    assert len(speeds.b.device.compared) == 1
    assert speeds.expected_us == pytest.approx(90.0)
    assert speeds.message == ""
    assert not speeds.counts.off


@pytest.mark.parametrize("latency_us", [120.0, 60.0])
async def test_a_node_goes_by_its_own_measurement_of_a_schedule_that_is_off(
    speeds: Speeds, latency_us: float
) -> None:
    speeds.b.device.sequential, speeds.b.device.others = taking(150.0), taking(latency_us)

    await speeds.time()

    assert speeds.expected_us == pytest.approx(latency_us)
    assert "batch size 1 on cpu: takes" in speeds.message
    assert "0.09 ms where its schedule was made" in speeds.message
    assert speeds.counts.off == {"cpu": 1}
    stored = await speeds.b.store.call(
        speeds.b.store.find_schedule, speeds.b.models.all_served()[0].schedule_keys[0]
    )
    assert stored is not None
    assert stored.provenance.measured_us == 90.0  # the fleet's stays


async def test_a_schedule_that_is_to_be_made_again_is_not_timed(speeds: Speeds) -> None:
    (schedule,) = speeds.b.taken_over
    asked = replace(schedule.provenance, again="it was asked for")
    speeds.b.taken_over[:] = [replace(schedule, provenance=asked)]

    await speeds.time()

    assert not speeds.b.device.compared


async def test_one_slow_moment_does_not_count(speeds: Speeds) -> None:
    device = speeds.b.device
    device.others = taking(500.0)

    async def be_fast_again() -> None:
        if device.compared:
            device.others = taking(90.0)

    device.before_comparing = be_fast_again

    await speeds.time()

    assert len(device.compared) == 2
    assert not speeds.counts.off


async def test_a_plan_that_is_slower_here_than_none_serves_no_more(speeds: Speeds) -> None:
    device = speeds.b.device
    device.sequential, device.others = taking(100.0), taking(200.0, 0.5)
    prepared = Counter[bool]()
    prepare = device.prepare

    async def prepare_and_count(*asked: object) -> object:
        prepared[getattr(asked[0], "plan", None) is None] += 1
        return await prepare(*asked)

    device.prepare = prepare_and_count  # type: ignore[method-assign]

    await speeds.time()

    assert speeds.expected_us == pytest.approx(100.0)
    assert prepared == {True: 1}  # the sequential plan
    assert "without its schedule" in speeds.message
    await speeds.b.look()
    assert prepared == {True: 1}  # the stored schedule is known, and does not come back


async def test_a_younger_schedule_is_judged_anew(speeds: Speeds) -> None:
    device = speeds.b.device
    device.sequential, device.others = taking(300.0), taking(200.0)
    await speeds.time()
    found = speeds.b.taken_over.pop()
    seen = replace(found.provenance, measured_us=200.0, created="2027-01-01T00:00:00+00:00")

    await speeds.a.store.call(speeds.a.store.put_schedule, replace(found, provenance=seen))
    await speeds.b.look()
    await speeds.time()

    assert speeds.counts.off == {"cpu": 1}
    assert speeds.expected_us == pytest.approx(200.0)
    assert speeds.message == ""


async def test_what_is_deleted_while_the_device_is_busy_is_not_timed(speeds: Speeds) -> None:
    turn = speeds.b.services.device_turns.of("cpu")
    await turn.acquire()
    for schedule in speeds.b.taken_over:
        speeds.same_speed.taken_over(speeds.b.version("net", 1), "cpu", schedule)
    await asyncio.sleep(0.01)
    await speeds.a.policies.delete("net", "")
    await speeds.b.look()

    turn.release()
    await until(lambda: speeds.same_speed.is_idle)

    assert speeds.b.device.compared == []
