"""Workers that sleep, wake up, and start ever further apart."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from braid.core.errors import WorkerRestarting
from braid.engine.link.messages import DescribeDevice
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import (
    STABLE_SECONDS,
    LinkEvents,
    LinkState,
    RestartPacing,
    WorkerLink,
)

OPTIONS = WorkerOptions(1, 1 << 16, 0, 1, module="tests.engine.link.losing_worker")


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[WorkerLink, list[tuple[LinkState, bool]]]]:
    """A link that is up, and what it tells from then on, with whether it answers."""
    arena, told = Arena(1 << 16), list[tuple[LinkState, bool]]()
    events = LinkEvents(on_state=lambda state: told.append((state, link.answers)))
    link = WorkerLink("cpu", OPTIONS, arena, events)
    await link.start()
    told.clear()
    try:
        yield link, told
    finally:
        await link.close()
        arena.close()


async def test_a_device_is_as_good_as_up_while_its_worker_sleeps_and_wakes_up() -> None:
    async with opened() as (link, told):
        await link.sleep()
        assert link.pid is None
        await link.wake()
        await link.call(DescribeDevice())

        states = LinkState.ASLEEP, LinkState.STARTING, LinkState.UP
        assert told == [(state, True) for state in states]


async def test_a_worker_that_does_not_wake_up_is_worth_another_try() -> None:
    async with opened() as (link, _):
        await link.sleep()
        link.options = replace(OPTIONS, module="tests.engine.link.no_such_worker")
        with pytest.raises(WorkerRestarting, match="cpu does not wake up"):
            await link.wake()
        assert link.state is LinkState.ASLEEP

        link.options = OPTIONS
        await link.wake()
        assert link.pid is not None


def test_workers_that_end_at_once_start_ever_further_apart_up_to_a_limit() -> None:
    pacing = RestartPacing(longest_s=5.0)
    pauses = [pacing.pause_s(lived_s=0.0) for _ in range(10)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_the_time_for_which_a_worker_lived_counts() -> None:
    pacing = RestartPacing(longest_s=5.0)
    for _ in range(10):
        pacing.pause_s(lived_s=0.0)
    assert pacing.pause_s(lived_s=2.0) == pytest.approx(3.0)
    assert pacing.pause_s(lived_s=6.0) == 0.0
    assert pacing.pause_s(lived_s=0.0) == 5.0


def test_a_worker_that_lived_for_long_makes_up_for_those_before() -> None:
    pacing = RestartPacing(longest_s=5.0)
    for _ in range(10):
        pacing.pause_s(lived_s=0.0)
    assert pacing.pause_s(lived_s=STABLE_SECONDS + 1) == 0.0
    assert pacing.pause_s(lived_s=0.0) == pytest.approx(0.1)
