"""Requests and measurements on the cores of one device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from braid.server.devices.duty_cycle import BETWEEN_S, IDLE_S, LEAST_GAP_S, QUIET_S, DutyCycle


class Device:
    """One run after the other, on a clock of its own, beside a bench."""

    def __init__(self, *, measures: bool = True, is_awaited: bool = True) -> None:
        self.now_s = 100.0
        self.is_measuring, self.is_awaited, self.is_held = measures, is_awaited, False
        self.pauses = 0
        self.duty_cycle = DutyCycle(cast(Any, self), lambda: self.now_s, self.pause)

    def hold(self) -> None:
        self.is_held = True

    def go_on(self) -> None:
        self.is_held = False

    async def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now_s += seconds

    async def run(self, seconds: float, gap_s: float = 0.0) -> bool:
        """Whether the run was held back."""
        self.now_s += gap_s
        pauses = self.pauses
        await self.duty_cycle.before_run()
        self.now_s += seconds
        self.duty_cycle.after_run()
        return self.pauses > pauses


async def test_a_busy_device_leaves_the_cores_to_what_is_measured_now_and_then() -> None:
    device = Device()
    held = [await device.run(BETWEEN_S / 10) for _ in range(30)]

    assert 2 <= sum(held) <= 3
    assert not any(held[:10])


async def test_it_does_not_while_nothing_is_measured() -> None:
    device = Device(measures=False)

    assert not any([await device.run(BETWEEN_S / 10) for _ in range(30)])


async def test_a_device_that_is_idle_by_itself_owes_no_turn() -> None:
    device = Device()
    gap_s = 2 * LEAST_GAP_S
    runs = round(IDLE_S / gap_s) + 1
    run_s = BETWEEN_S / runs

    assert not any([await device.run(run_s, gap_s) for _ in range(5 * runs)])


async def test_moments_between_runs_are_not_idleness() -> None:
    device = Device()
    runs = [await device.run(BETWEEN_S / 50, LEAST_GAP_S / 2) for _ in range(200)]

    assert any(runs)


async def test_a_turn_begins_when_the_runs_under_way_are_over() -> None:
    device = Device()
    await device.duty_cycle.before_run()
    device.now_s += 2 * BETWEEN_S
    next_run = asyncio.create_task(device.duty_cycle.before_run())
    other = asyncio.create_task(device.duty_cycle.before_run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert device.pauses == 0
    assert not next_run.done()
    assert not other.done(), "nobody overtakes"

    device.duty_cycle.after_run()

    async with asyncio.timeout(120):
        await asyncio.gather(next_run, other)
    assert device.pauses == 1


async def test_work_of_idle_time_delays_no_run_and_stands_still_until_requests_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, later = Device(is_awaited=False), list[tuple[float, Callable[[], object]]]()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda *call: later.append(call))

    def a_look() -> None:
        (seconds, look), later[:] = later[-1], []
        device.now_s += seconds
        look()

    for _ in range(30):
        assert device.duty_cycle.begin_now()
        assert device.is_held, "whatever measures"
        device.now_s += BETWEEN_S / 10
        device.duty_cycle.after_run()
    assert device.pauses == 0

    a_look()
    assert not device.is_held
    assert device.duty_cycle.begin_now()
    a_look()
    assert device.is_held, "a run is under way"
    device.duty_cycle.after_run()
    device.now_s += QUIET_S / 2
    a_look()
    assert not later
    assert not device.is_held


async def test_work_that_somebody_began_to_wait_for_gets_its_turns() -> None:
    device = Device(is_awaited=False)
    await device.run(BETWEEN_S)
    device.is_awaited = True
    device.go_on()

    assert any([await device.run(BETWEEN_S / 10) for _ in range(30)])
    assert not device.is_held
