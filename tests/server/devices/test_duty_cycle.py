import asyncio
from typing import Any, cast

from braid.server.devices.duty_cycle import BETWEEN_S, IDLE_S, LEAST_GAP_S, DutyCycle


class Device:
    """One run after the other, on a clock of its own, beside a bench."""

    def __init__(self, *, measures: bool = True) -> None:
        self.now_s = 100.0
        self.is_measuring = measures
        self.pauses = 0
        self.duty_cycle = DutyCycle(cast(Any, self), lambda: self.now_s, self.pause)

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
