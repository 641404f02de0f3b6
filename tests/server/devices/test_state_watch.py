"""The state of a device's cores, followed by asking its worker."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.core.device_state import DeviceState
from braid.core.errors import WorkerRestarting
from braid.engine.link.messages import DescribeDevice, DeviceDescription
from braid.engine.link.supervisor import WorkerLink
from braid.server.devices.state_watch import StateWatch

NEAR = DeviceState(((0, 1),), ((0.0, 45.0), (45.0, 0.0)))
FAR = DeviceState(((0,), (1,)), ((0.0, 370.0), (370.0, 0.0)))


class Link:
    """A worker that answers with what it is given, a state after the other, then waits for ever."""

    name = "cpu"

    def __init__(self, *states: DeviceState | WorkerRestarting) -> None:
        self.device = DeviceDescription("cpu:a", 2, ("fp32",), (), {}, NEAR)
        self.options = SimpleNamespace(gpu=None)
        self.states = list(states)
        self.all_told = asyncio.Event()

    async def call(self, request: Any) -> DeviceDescription:
        assert request == DescribeDevice()
        if not self.states:
            self.all_told.set()
            await asyncio.Event().wait()
        state = self.states.pop(0)
        if isinstance(state, WorkerRestarting):
            raise state
        return DeviceDescription("cpu:a", 2, ("fp32",), (), {}, state)


async def test_a_change_is_told_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "braid.device")
    changes: list[None] = []
    link = Link(NEAR, WorkerRestarting("again in a moment"), FAR, DeviceState(), FAR)
    watch = StateWatch(cast(WorkerLink, link), lambda: changes.append(None), least_pause_s=0.0)

    watch.start()
    assert watch.state == NEAR
    await asyncio.wait_for(link.all_told.wait(), 120)
    await watch.close()

    assert (watch.state, len(changes)) == (FAR, 1)
    (line,) = caplog.records
    assert (vars(line)["was"], vars(line)["now"]) == ("near (45 ns)", "far (370 ns)")


async def test_a_gpu_is_not_asked() -> None:
    link = Link(FAR)
    link.options.gpu = "0"
    watch = StateWatch(cast(WorkerLink, link), lambda: None, least_pause_s=0.0)

    watch.start()
    for _ in range(3):
        await asyncio.sleep(0)
    await watch.close()

    assert (len(link.states), watch.state) == (1, DeviceState())
