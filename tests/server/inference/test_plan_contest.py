from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.core.contest import BLOCK
from braid.core.errors import DeviceOutOfMemory, WorkerRestarting
from braid.core.plan import sequential_plan
from braid.core.schedule import (
    PlanCandidate,
    Provenance,
    Schedule,
    ScheduleKey,
    schedule_from_json,
    schedule_to_json,
)
from braid.core.shapes import ShapeMemory
from braid.server.devices.executables import Executable
from braid.server.inference import plan_contest
from braid.server.inference.plan_contest import ContestEvents, PlanContest
from braid.server.models.idle_pairs import ROUND_S, IdlePairs
from tests.server.jobs.fakes import a_moment

PLAN = sequential_plan(2)
SIZE_BYTES = 1 << 20


def schedule(*, is_decided: bool = False) -> Schedule:
    """OpenVINO serves first, then Braid's own plan, then ONNX Runtime."""
    return Schedule(
        ScheduleKey("00", "cpu", 1, planner="portfolio"),
        "openvino",
        PLAN,
        (),
        ("a", "b"),
        Provenance(measured_us=100.0, is_decided=is_decided),
        (
            PlanCandidate("sequential", PLAN, latency_us=105.0),
            PlanCandidate("onnxruntime", PLAN, latency_us=110.0),
        ),
    )


class Service:
    """A contest on a device whose plans take what ``us`` says."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, shown: Schedule, memory_bytes: int = 1 << 30
    ) -> None:
        self.us = {"openvino": 100.0, "sequential": 100.0, "onnxruntime": 100.0}
        self.now = 0.0
        self.made: dict[int, str] = {}
        self.alive: set[str] = {"openvino"}
        self.refused: dict[str, Exception] = {}
        self.told: list[Schedule] = []
        monkeypatch.setattr(plan_contest, "monotonic", lambda: self.now)
        monkeypatch.setattr(plan_contest, "AGAIN_S", 0.0)
        events = ContestEvents(self._prepare, self._retire, self.told.append)
        first = self._executable("openvino")
        memory = ShapeMemory(memory_bytes)
        self.contest = PlanContest(shown, first, events, memory, 0.1)

    def _executable(self, name: str) -> Executable:
        self.made[len(self.made)] = name
        layout = SimpleNamespace(has_heap=False, size_bytes=4)
        whole = SimpleNamespace(number=len(self.made) - 1, size_bytes=SIZE_BYTES, layout=layout)
        return cast(Executable, whole)

    async def _prepare(self, led: Schedule) -> Executable:
        if error := self.refused.pop(led.planner, None):
            raise error
        self.alive.add(led.planner)
        return self._executable(led.planner)

    async def _retire(self, ready: Executable) -> None:
        self.alive.discard(self.made[ready.number])

    async def open(self) -> Service:
        self.contest.begin()
        for _ in range(20):
            await asyncio.sleep(0)
        return self

    def requests(self, count: int, seconds: float = 0.05, **how: Any) -> list[str]:
        """Answer requests one by one; returns the plans that ran."""
        ran = []
        for _ in range(count):
            ready = self.contest.next(**{"may_explore": True, **how})
            name = self.made[ready.number]
            self.now += seconds
            self.contest.took(ready, self.us[name])
            ran.append(name)
        return ran


async def test_requests_find_the_fastest_and_memory_is_that_of_one_plan_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(monkeypatch, schedule())
    assert not service.contest.table().is_decided, "the others are not prepared yet"
    await service.open()
    assert service.contest.size_bytes == 2 * SIZE_BYTES
    service.us |= {"sequential": 70.0, "onnxruntime": 130.0}

    ran = service.requests(20_000)
    await asyncio.sleep(0)

    assert set(ran[:2_000]) == {*service.us}
    assert set(ran[-100:]) == {"sequential"}
    assert service.alive == {"sequential"}
    assert (service.contest.is_open, service.contest.size_bytes) == (False, 0)
    assert service.contest.in_force is service.contest.executables[0]
    (decided,) = service.told
    assert (decided.planner, decided.provenance.is_decided) == ("sequential", True)
    assert decided.provenance.measured_us == 105.0, "as at registration"
    assert sorted(one.name for one in decided.others) == ["onnxruntime", "openvino"]
    text = service.contest.table().text
    assert text.startswith("serves: own plan (one operator after another), 0.07 ms; ")
    assert "measured at" not in text, "requests measured it"
    assert service.contest.table().state in text
    for table in (service.contest.table(), decided.table):
        rows = {row.name: row for row in table.rows}
        assert table.rows[0].name == "sequential"
        assert rows["onnxruntime"].ratio == pytest.approx(130 / 70)
        assert rows["onnxruntime"].latency_us == pytest.approx(130.0)
        assert rows["openvino"].ratio == pytest.approx(100 / 70, rel=0.01)
        assert all(row.pairs and row.low and row.high for row in table.rows)
    assert schedule_from_json(schedule_to_json(decided)) == decided
    assert decided.table.text.endswith(f"measured at the decision; {service.contest.table().state}")
    assert sum(ran.count(name) for name in ("openvino", "onnxruntime")) < 0.1 * len(ran)


async def test_nothing_is_tried_where_the_queue_is_full_or_a_deadline_is_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = await Service(monkeypatch, schedule()).open()

    assert {*service.requests(200, may_explore=False)} == {"openvino"}
    assert {*service.requests(200, slack_us=120.0)} == {"openvino"}, "it might take 210 us"
    assert len({*service.requests(200, slack_us=1e6)}) > 1


async def test_a_decided_contest_holds_one_plan_and_opens_again_when_its_latency_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(monkeypatch, schedule(is_decided=True))
    service.requests(2_000)
    assert (service.alive, service.contest.is_open) == ({"openvino"}, False)

    service.us = dict.fromkeys(service.us, 200.0)
    for _ in range(30):
        service.requests(200)
        await asyncio.sleep(0)

    assert service.alive == {*service.us}
    assert service.contest.is_open
    assert not service.told


async def test_what_cannot_be_prepared_takes_no_part_and_a_restarting_worker_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(monkeypatch, schedule())
    service.refused["sequential"] = DeviceOutOfMemory("there is no room")
    service.refused["onnxruntime"] = WorkerRestarting("again in a moment")

    await service.open()

    assert {row.name for row in service.contest.table().rows if row.share or row.ratio} <= {
        "openvino",
        "onnxruntime",
    }
    assert {*service.requests(300)} == {"openvino", "onnxruntime"}


async def test_a_plan_whose_memory_is_needed_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    service = await Service(monkeypatch, schedule(), memory_bytes=SIZE_BYTES).open()
    await asyncio.sleep(0)

    assert len(service.alive) == 2
    assert "openvino" in service.alive
    assert {*service.requests(300)} == service.alive


async def test_a_challenger_that_fails_leaves_and_what_serves_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = await Service(monkeypatch, schedule()).open()
    plans = {service.made[one.number]: one for one in service.contest.executables}

    assert not service.contest.failed(plans["openvino"])
    assert service.contest.failed(plans["onnxruntime"])
    assert service.contest.failed(plans["sequential"], is_death=True)
    await asyncio.sleep(0)
    assert service.alive == {"openvino", "sequential"}, "one death may be by chance"
    assert service.contest.failed(plans["sequential"], is_death=True)
    await asyncio.sleep(0)
    assert service.alive == {"openvino"}


class Arena:
    def __init__(self) -> None:
        self.view = memoryview(bytearray(64))

    def allocate(self, size_bytes: int) -> int:
        return 0

    def release(self, offset: int) -> None: ...


async def test_idle_time_supplies_pairs_and_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    service = await Service(monkeypatch, schedule()).open()
    ran, arena = list[tuple[str, bytes]](), Arena()
    most = 2 * BLOCK + 1  # runs until a request comes

    async def run(ready: Executable, offset: int) -> Any:
        ran.append((service.made[ready.number], bytes(arena.view[:4])))
        return SimpleNamespace(compute_us=100)

    replica: Any = SimpleNamespace(
        name="net",
        contests=[(None, 1, service.contest)],
        device=SimpleNamespace(arena=arena, run=run),
        begin_use=lambda ready: None,
        end_use=lambda ready: None,
    )
    slept_s = list[float]()

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        await a_moment()

    pairs = IdlePairs(lambda: [replica], a_moment, lambda: len(ran) >= most, sleep)

    await pairs.look()
    assert len(ran) == most
    assert len({name for name, _ in ran}) == 2
    assert {inputs for _, inputs in ran} == {bytes(4)}, "no request has shown its inputs"
    await pairs.look()
    assert len(ran) == most, "requests run"
    service.contest.inputs, most = b"rows", 100
    await pairs.look()
    assert {inputs for _, inputs in ran[-50:]} == {b"rows"}
    assert len({name for name, _ in ran}) == 3
    rounds = [seconds for seconds in slept_s if seconds > ROUND_S / 2]
    assert len(rounds) >= len(ran) // (3 * BLOCK), "an idle device works a small part of the time"
    assert sum(service.contest.runs.values()) == 0, "requests did not wait for these"
