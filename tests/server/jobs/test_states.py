"""Registrations on a machine whose host moves its cores: what is measured belongs to one state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braid.compiler.compile import MOST_CHANGES
from braid.core.device_state import CHANGING, DeviceState, key_in_state
from braid.core.errors import DeviceChanged
from braid.core.schedule import Schedule
from braid.engine.link.messages import ComparePlans, MeasurementRequest, MeasureStage
from braid.server.store.records import JobStatus
from tests.server.jobs.fakes import FakeDevice, Server
from tests.server.jobs.watching import registered

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
