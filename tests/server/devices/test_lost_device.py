import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from braid.core.errors import WorkerRestarting
from braid.core.program import PlanToRun, ProgramKey
from braid.engine.link import worker_process
from braid.engine.link.messages import RunExecutable
from braid.engine.link.options import EndReason, WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import LinkEvents, LinkState, WorkerLink
from braid.server.devices.device import Device, DeviceEvents
from tests.engine.link.losing_worker import LEAVE, NO_ROOM_FOR
from tests.engine.link.test_hung_worker import pid_of

TIMEOUT_S = 200.0
OPTIONS = WorkerOptions(1, 1 << 16, 0, 1, module="tests.engine.link.losing_worker")


@asynccontextmanager
async def opened(
    options: WorkerOptions, events: LinkEvents | None = None
) -> AsyncIterator[WorkerLink]:
    arena = Arena(1 << 16)
    link = WorkerLink("cuda:0", options, arena, events)
    try:
        yield link
    finally:
        await link.close()
        arena.close()


def when_up(up: asyncio.Event) -> Callable[[LinkState], None]:
    """Set an event each time a link is up."""
    return lambda state: up.set() if state is LinkState.UP else None


async def test_a_lost_device_costs_the_requests_in_flight_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends: list[WorkerEnd] = []
    up_again = asyncio.Event()
    events = LinkEvents(on_state=when_up(up_again), on_end=ends.append)
    async with opened(OPTIONS, events) as link:
        await link.start()
        first = pid_of(link)
        up_again.clear()

        with caplog.at_level(logging.ERROR), pytest.raises(WorkerRestarting):
            await link.call(RunExecutable(1, 0))
        await asyncio.wait_for(up_again.wait(), TIMEOUT_S)
        assert pid_of(link) != first

    (end,) = ends
    assert end.reason is EndReason.DEVICE_LOST
    (line,) = [record.getMessage() for record in caplog.records]
    assert "of cuda:0 is replaced: the GPU failed while running: an illegal memory access" in line


async def test_a_worker_that_closes_its_link_and_stays_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "END_SECONDS", 0.3)
    up_again = asyncio.Event()
    async with opened(OPTIONS, LinkEvents(on_state=when_up(up_again))) as link:
        await link.start()
        first = pid_of(link)
        up_again.clear()
        with pytest.raises(WorkerRestarting):
            await link.call(LEAVE)
        await asyncio.wait_for(up_again.wait(), TIMEOUT_S)
        assert pid_of(link) != first


async def test_a_plan_without_room_after_a_restart_is_tried_again_when_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up_again = asyncio.Event()
    events = DeviceEvents(changed=lambda device: up_again.set() if device.is_up else None)
    device = Device("cuda:0", OPTIONS, events=events)
    await device.start()
    other = await device.prepare(PlanToRun(ProgramKey("other", ())))
    wanted = await device.prepare(PlanToRun(ProgramKey("wanted", ())))
    assert (await device.run(wanted, 0)).compute_us == 7
    up_again.clear()

    # A name that a worker is told: it is told hardly any.
    monkeypatch.setenv(NO_ROOM_FOR, "wanted")
    with pytest.raises(WorkerRestarting):
        await device.run(other, 0)
    await asyncio.wait_for(up_again.wait(), TIMEOUT_S)

    assert (await device.run(wanted, 0)).compute_us == 7, "prepared now, there being room"
    await device.close()
