"""What the front end does when a worker says that its device is lost."""

from __future__ import annotations

import asyncio
import logging

import pytest

from core.errors import WorkerRestarting
from engine.worker.arena import Arena
from engine.worker.link import LinkState, WorkerLink
from engine.worker.options import EndReason, WorkerEnd, WorkerOptions

OPTIONS = WorkerOptions(1, 1 << 16, 0, 1, module="tests.worker.losing_worker", keep_spare=False)


async def test_a_lost_device_costs_the_requests_in_flight_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arena = Arena(1 << 16)
    link = WorkerLink("cuda:0", OPTIONS, arena)
    ends: list[WorkerEnd] = []
    link.on_end = ends.append
    up_again = asyncio.Event()
    await link.start()
    first = link.facts["pid"]
    link.on_state = lambda state: up_again.set() if state is LinkState.UP else None

    with caplog.at_level(logging.ERROR), pytest.raises(WorkerRestarting):
        await link.call("infer")
    await asyncio.wait_for(up_again.wait(), 20)

    assert link.facts["pid"] != first
    (end,) = ends
    assert end.reason is EndReason.DEVICE_LOST
    (line,) = [record.getMessage() for record in caplog.records]
    assert "of cuda:0 is replaced: the GPU failed while running: an illegal memory access" in line
    await link.close()
    arena.close()
