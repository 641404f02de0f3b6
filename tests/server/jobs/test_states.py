"""Registrations on a machine whose host moves its cores: what is measured belongs to one state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from braid.compiler.compile import MOST_CHANGES
from braid.compiler.provisional import FIRST_PAUSE_S
from braid.compiler.work import MOST_DEATHS
from braid.core.device_state import CHANGING, UNKNOWN, DeviceState, key_in_state
from braid.core.errors import DeviceChanged, WorkerDied
from braid.core.measurement import PlanMeasurement
from braid.core.precision import FP32
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Schedule, ScheduleKey
from braid.engine.link.messages import ComparePlans, FindFacts, MeasurementRequest, MeasureStage
from braid.scheduler.options import PlannerSettings
from braid.server.jobs.registration import serve_again
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobStatus
from tests.server.jobs.fakes import FakeDevice, Server
from tests.server.jobs.test_provisional import Machine, in_idle_time, until
from tests.server.jobs.watching import registered, until_ended

NEAR, FAR = DeviceState(((0, 1),)), DeviceState(((0,), (1,)))


def moves(device: FakeDevice, when: Callable[[Any], bool], to: list[DeviceState]) -> None:
    """Let the next state come with a request; requests of another state fail as a worker's do."""
    ask = device.ask

    async def asked(request: Any, *arguments: Any) -> Any:
        if to and when(request):
            device.state = to.pop(0)
        if isinstance(request, MeasurementRequest) and request.state not in (
            None,
            device.state.name,
        ):
            raise DeviceChanged(request.state, device.state.name)
        return await ask(request, *arguments)

    device.ask = asked  # type: ignore[method-assign, assignment]


def stored(server: Server) -> Schedule:
    (schedule,) = server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
    return schedule


def kept(server: Server, state: DeviceState) -> set[str]:
    return {*server.store.all_latencies(key_in_state(server.device.device_key, state.name))}


async def test_latencies_are_kept_by_the_state_they_were_measured_in(server: Server) -> None:
    server.device.state = FAR
    await registered(server, sizes=(1,))
    measured = server.device.measured.copy()
    assert (kept(server, NEAR), stored(server).provenance.state) == (set(), "far")
    server.device.state = NEAR

    await registered(server, sizes=(1,), name="other", content=b"other bytes, same graph")

    assert kept(server, NEAR) == kept(server, FAR) != set()
    assert server.device.measured == dict.fromkeys(measured, 2)


async def test_where_the_state_stays_nothing_is_measured_twice(server: Server) -> None:
    server.device.state = FAR
    await registered(server, sizes=(1,))

    await registered(server, sizes=(1,), name="other", content=b"other bytes, same graph")

    assert {*server.device.measured.values()} == {1}


async def test_a_change_in_the_comparison_goes_on_in_the_other_state(server: Server) -> None:
    server.device.state = NEAR
    moves(server.device, lambda request: isinstance(request, ComparePlans), [FAR])

    job = await registered(server, sizes=(1,))

    schedule = stored(server)
    assert (job.state, job.message) == (JobStatus.READY, "")
    assert (schedule.provenance.state, schedule.provenance.provisional) == ("far", None)
    assert len(server.device.compared) == 1, "the one that the change ended decides nothing"
    assert kept(server, NEAR) == kept(server, FAR) != set()


async def test_a_device_that_stays_in_no_state_gets_a_provisional_schedule(server: Server) -> None:
    server.device.state = NEAR
    moves(server.device, lambda request: isinstance(request, ComparePlans), [FAR, NEAR] * 99)

    job = await registered(server, sizes=(1,))

    provenance = stored(server).provenance
    assert job.state is JobStatus.READY
    assert provenance.state == CHANGING
    assert provenance.provisional is not None
    assert "kept changing" in provenance.provisional.reason
    assert len(server.device.compared) == 1
    assert {*server.device.measured.values()} == {2}, "in each state once, however often it changed"


async def test_changes_are_waited_out_for_a_bounded_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("braid.compiler.compile.MOST_CHANGING_S", 0.0)
    server.device.state = NEAR
    moves(server.device, lambda request: isinstance(request, ComparePlans), [FAR])

    await registered(server, sizes=(1,))

    assert stored(server).provenance.state == CHANGING


@pytest.mark.parametrize("changes", [0, MOST_CHANGES - 1, MOST_CHANGES, 99])
async def test_a_runtime_that_kills_its_worker_is_left_out_however_often_the_state_changed(
    server: Server, changes: int
) -> None:
    device, deaths, plans = server.device, 0, server.planner.calls
    device.state, device.runtimes = NEAR, (ONNXRUNTIME, OPENVINO)
    device.in_runtimes = {(ONNXRUNTIME, FP32): device.others}
    ask = device.ask

    async def ask_or_die(request: Any, *arguments: Any) -> Any:
        nonlocal deaths
        if isinstance(request, ComparePlans) and OPENVINO in request.fields[0].runtimes:
            deaths += 1
            raise WorkerDied("the device worker died while it had this request; try again")
        return await ask(request, *arguments)

    device.ask = ask_or_die  # type: ignore[method-assign, assignment]
    moves(device, lambda request: isinstance(request, ComparePlans), ([FAR, NEAR] * 50)[:changes])

    job = await registered(server, sizes=(1,), planner=PlannerSettings("portfolio"))

    provenance = stored(server).provenance
    assert (job.state, deaths) == (JobStatus.READY, MOST_DEATHS)
    assert provenance.left_out == {OPENVINO: "the worker died 3 times, at last with it"}
    names = [contender.name for contender in provenance.candidates]
    assert ONNXRUNTIME in names
    assert OPENVINO not in names
    assert (provenance.state == CHANGING) == (changes >= MOST_CHANGES)
    assert (provenance.provisional is not None) == (changes >= MOST_CHANGES)
    assert server.planner.calls - plans == min(2, changes + 1), "once in each state"


async def test_what_was_measured_before_a_change_is_not_measured_again_after_it(
    server: Server,
) -> None:
    server.device.state = NEAR
    moves(server.device, lambda request: isinstance(request, MeasureStage), [FAR, NEAR] * 5)

    job = await registered(server, sizes=(1,))

    assert (job.state, job.message) == (JobStatus.READY, "")
    assert stored(server).provenance.state in ("near", "far")
    assert max(server.device.measured.values()) <= 2
    assert len(server.device.compared) == 1
    assert MOST_CHANGES > 10


async def test_what_no_cache_keeps_is_asked_once_in_each_state(server: Server) -> None:
    server.device.state = NEAR

    def is_of_search(request: Any) -> bool:
        return isinstance(request, MeasureStage) and not request.variant

    moves(server.device, is_of_search, [FAR, NEAR])
    ask, answered = server.device.ask, list[tuple[Any, str]]()

    async def asked(request: Any, *arguments: Any) -> Any:
        reply = await ask(request, *arguments)
        if isinstance(request, FindFacts):
            answered.append((request, server.device.state.name))
        return reply

    server.device.ask = asked  # type: ignore[method-assign, assignment]

    await registered(server, sizes=(1,))

    assert sorted(state for _, state in answered) == ["far", "near"]


async def test_it_goes_on_where_it_was_when_the_first_state_is_back(server: Server) -> None:
    server.device.state = NEAR
    to = [FAR]
    moves(server.device, lambda request: isinstance(request, ComparePlans), to)

    def back(stage: Any) -> None:  # in the midst of the search in the other state
        if server.device.state is FAR and not to:
            to.append(NEAR)

    server.device.before_measuring = back
    moves(server.device, lambda request: isinstance(request, MeasureStage), to)
    plans = server.planner.calls

    await registered(server, sizes=(1,))

    assert stored(server).provenance.state == "near"
    assert server.planner.calls - plans == 2, "near once, far begun; near was not searched again"


# A schedule for each state.


def of_states(server: Server) -> dict[str, Schedule]:
    schedules = server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
    return {schedule.provenance.state: schedule for schedule in schedules}


def by_distance(device: FakeDevice) -> None:
    """Branches side by side pay near, and cost far: plans in which units share a stage lose."""
    ask = device.ask

    async def asked(request: Any, *arguments: Any) -> Any:
        if isinstance(request, ComparePlans):
            is_near = device.state.name == "near"
            others = PlanMeasurement(50.0, 0.01, 10, (2.0,) * 9, 1e-6, 1e-6)
            slower = PlanMeasurement(150.0, 0.01, 10, (0.67,) * 9, 1e-6, 1e-6)
            device.others = others if is_near else slower
        return await ask(request, *arguments)

    device.ask = asked  # type: ignore[method-assign, assignment]


def serving(server: Server) -> Schedule | None:
    return server.models.plans.get(("lenet", 1, 1))


async def test_the_second_state_gets_its_schedule_in_idle_time_and_each_has_its_plan(
    server: Server,
) -> None:
    server.device.state = NEAR
    by_distance(server.device)
    await registered(server, sizes=(1,))
    near = stored(server)
    assert serving(server) == near
    server.device.state, machine = FAR, Machine()

    async with in_idle_time(server, machine):
        await until(lambda: len(of_states(server)) == 2 and not server.runner.has_jobs)

    far = of_states(server)["far"]
    assert of_states(server)["near"] == near, "untouched"
    assert near.key.of_first_state == near.key == far.key.of_first_state
    assert (near.provenance.promoted, far.provenance.promoted) == (True, False)
    assert server.store.find_graph(far) is not None
    assert machine.ahead_s >= FIRST_PAUSE_S, "the job waited for idle time"
    assert [job.state for job in server.store.jobs()] == [JobStatus.READY] * 2


async def test_what_a_state_lacks_is_made_while_the_device_is_in_it(server: Server) -> None:
    server.device.state = NEAR
    await registered(server, sizes=(1,))
    server.device.state, machine = FAR, Machine()

    async with in_idle_time(server, machine):
        server.device.state = NEAR
        waited_from = machine.sleeps
        await until(lambda: machine.sleeps > waited_from + 50)
        assert len(server.store.jobs()) == 1, "near lacks nothing"

        server.device.state = FAR
        await until(lambda: len(of_states(server)) == 2)


async def test_an_idle_job_that_meets_a_change_leaves_what_is_settled(server: Server) -> None:
    server.device.state = NEAR
    await registered(server, sizes=(1,))
    near = stored(server)
    server.device.state = FAR
    moves(server.device, lambda request: isinstance(request, ComparePlans), [NEAR, FAR] * 99)

    async with in_idle_time(server, Machine()):
        await until(lambda: len(server.store.jobs()) > 1 and not server.runner.has_jobs)
        assert of_states(server) == {"near": near}, "nothing was found out in a state that stayed"


async def test_a_job_that_is_asked_for_makes_the_schedule_of_the_present_state(
    server: Server,
) -> None:
    server.device.state = NEAR
    await registered(server, sizes=(1,))
    server.device.state = FAR

    job = await server.runner.schedule_again("lenet", 1)
    await until_ended(server, job.id)

    schedules = of_states(server)
    assert {*schedules} == {"near", "far"}
    assert schedules["near"].is_asked, "it is made again when the device is near"
    assert schedules["far"].provenance.provisional is None


async def test_another_registration_of_the_bytes_takes_what_there_is_in_any_state(
    server: Server,
) -> None:
    server.device.state = NEAR
    await registered(server, sizes=(1,))
    measured = server.device.measured.copy()
    server.device.state = FAR

    job = await registered(server, sizes=(1,), name="other")

    assert job.state is JobStatus.READY
    assert server.device.measured == measured
    assert len(server.device.compared) == 1


@pytest.mark.parametrize("state", [NEAR, FAR, UNKNOWN])
async def test_a_restart_measures_nothing_and_serves_the_plan_of_the_present_state(
    server: Server, state: DeviceState
) -> None:
    server.device.state = NEAR
    server.device.others = PlanMeasurement(50.0, 0.01, 10, (2.0,) * 9, 1e-6, 1e-6)
    await registered(server, sizes=(1,))
    server.device.state = FAR
    async with in_idle_time(server, Machine()):
        await until(lambda: len(of_states(server)) == 2 and not server.runner.has_jobs)
    await server.stop()

    again = Server(server.store.folder.root)
    again.device.state = state
    await again.runner.start()
    await serve_again(again.store.find_model("lenet", 1), again.services)

    assert serving(again) == of_states(again)[state.name or "near"]
    assert (again.device.measured, again.device.compared) == ({}, [])
    assert len(again.store.jobs()) == 2
    await again.stop()


async def test_a_schedule_of_before_there_were_states_serves_in_any(server: Server) -> None:
    server.device.others = PlanMeasurement(50.0, 0.01, 10, (2.0,) * 9, 1e-6, 1e-6)
    await registered(server, sizes=(1,))
    old = stored(server)
    assert (old.provenance.state, old.key.to_json().get("state")) == ("", None)
    server.device.state, machine = FAR, Machine()

    async with in_idle_time(server, machine):
        assert serving(server) == old
        server.device.state = NEAR
        waited_from = machine.sleeps
        await asyncio.sleep(0.05)
        assert machine.sleeps == waited_from, "nothing waits to be made"

    assert of_states(server) == {"": old}


async def test_a_registration_that_ends_in_another_state_than_it_measured_in_lacks_the_present_one(
    server: Server,
) -> None:
    server.device.state, lacking = NEAR, list[ScheduleKey]()
    services = replace(server.services, on_lacking=lambda model, device, key: lacking.append(key))
    server.runner = JobRunner(services)
    await server.runner.start()
    put_schedule = server.store.put_schedule

    def put_and_move(*arguments: Any) -> None:
        put_schedule(*arguments)
        server.device.state = FAR

    server.store.put_schedule = put_and_move  # type: ignore[method-assign, assignment]
    server.device.others = PlanMeasurement(50.0, 0.01, 10, (2.0,) * 9, 1e-6, 1e-6)

    await registered(server, sizes=(1,))

    assert serving(server) == stored(server), "better than none"
    assert stored(server).provenance.state == "near"
    assert lacking == [replace(stored(server).key, state="far")]


@pytest.mark.parametrize("has_far", [True, False])
async def test_drift_doubts_what_serves_in_the_present_state(server: Server, has_far: bool) -> None:
    server.device.state = NEAR
    await registered(server, sizes=(1,))
    server.device.state = FAR
    if has_far:
        async with in_idle_time(server, Machine()):
            await until(lambda: len(of_states(server)) == 2 and not server.runner.has_jobs)

    await server.runner.doubt("lenet", 1, batch_size=1, device="cpu", reason="it is faster")

    doubted = {
        state: schedule.provenance.provisional is not None
        for state, schedule in of_states(server).items()
    }
    assert doubted == ({"near": False, "far": True} if has_far else {"near": True})
