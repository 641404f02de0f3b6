"""Measurements end where the device is in another state than theirs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from braid.core.device_state import UNKNOWN, DeviceState
from braid.core.errors import DeviceChanged
from braid.core.measurement import DeviceFacts, StageLatency
from braid.core.program import ProgramKey
from braid.engine.device import Backend
from braid.engine.link.messages import ComparePlans, SearchPlans, SearchResult
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.worker.measuring.state_guard import (
    LOOK_S,
    MOST_SEARCHES,
    PART,
    Search,
    StateGuard,
)
from tests.engine.timing.running import finish

NEAR, FAR = DeviceState(((0, 1),)), DeviceState(((0,), (1,)))
REPLY = StageLatency(1.0, 0.0, 1)


@dataclass
class Device:
    """In one state after the other; counts looks, and time passes as it is told."""

    states: Sequence[DeviceState]
    now: float = 1000.0
    looks: int = 0
    look_s: float = 0.0
    ended: list[str] = field(default_factory=list)

    def state(self, _: YieldToRequests) -> DeviceState:
        self.looks += 1
        self.now += self.look_s
        return self.states[min(self.looks, len(self.states)) - 1]

    def guard(self) -> StateGuard:
        return StateGuard(cast(Backend, self), no_pause, lambda: self.now)

    def task(self, steps: int, step_s: float, progress: Any = None) -> Generator[Any, Any, Any]:
        """A measurement of so many steps."""
        try:
            for _ in range(steps):
                self.now += step_s
                yield progress
            return REPLY
        finally:
            self.ended.append("task")


def test_in_one_state_nothing_changes_and_looks_are_rare() -> None:
    device = Device([FAR])

    reply, steps = finish(device.guard().in_state(device.task(60, LOOK_S / 25), "far"))

    assert (reply, steps) == (REPLY, 60)
    assert device.looks == 1 + 2 + 1  # before, on the way, and at the end


def test_short_measurements_that_follow_on_each_other_share_looks() -> None:
    device = Device([NEAR])
    guard = device.guard()

    for _ in range(100):
        finish(guard.in_state(device.task(1, 0.001), "near"))

    assert device.looks <= 100 * 0.001 / 0.02 + 1


def test_looks_that_take_long_are_rare() -> None:
    device = Device([NEAR], look_s=0.008)
    guard = device.guard()

    for _ in range(100):
        finish(guard.in_state(device.task(1, 0.02), "near"))

    assert device.looks * device.look_s <= PART * (device.now - 1000.0) + device.look_s


def test_a_change_is_not_told_from_an_earlier_look() -> None:
    device = Device([FAR, NEAR], look_s=0.1)
    guard = device.guard()
    with pytest.raises(DeviceChanged):
        finish(guard.in_state(device.task(1, 0.001), "near"))

    reply, _ = finish(guard.in_state(device.task(1, 0.001), "near"))

    assert (reply, device.looks) == (REPLY, 2)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_change_ends_it_before_it_begins_on_the_way_and_at_its_end(at: int) -> None:
    device = Device([NEAR] * (at - 1) + [FAR])

    with pytest.raises(DeviceChanged, match="near and are far"):
        finish(device.guard().in_state(device.task(2, LOOK_S), "near"))

    assert device.ended == ["task"] * (at > 1)


def test_where_the_state_cannot_be_told_or_is_not_asked_for_it_goes_on() -> None:
    device = Device([UNKNOWN])
    finish(device.guard().in_state(device.task(3, LOOK_S), "near"))

    device = Device([NEAR, FAR])
    finish(device.guard().in_state(device.task(3, LOOK_S), None))
    assert device.looks == 0


COMPARISON = ComparePlans(ProgramKey("ab", ()), ())


def steps(device: Device, done: list[float | None], count: int) -> Generator[Any, Any, Any]:
    """A comparison of so many steps, which notes what it is sent after each."""
    try:
        for _ in range(count):
            device.now += LOOK_S
            done.append((yield None))
        return REPLY
    finally:
        device.ended.append("task")


def test_a_comparison_goes_on_where_it_was_once_the_state_is_back() -> None:
    device = Device([NEAR, NEAR, FAR, FAR, NEAR])
    guard, done = device.guard(), list[float | None]()

    with pytest.raises(DeviceChanged):
        finish(guard.in_state(steps(device, done, 5), "near", COMPARISON))
    assert (done, device.ended) == ([None], [])
    finish(guard.in_state(device.task(1, 0.9), "far"))  # something else meanwhile
    device.now += 0.1

    reply, _ = finish(guard.in_state(steps(device, [], 5), "near", COMPARISON))

    assert reply is REPLY
    assert done[1:] == [pytest.approx(1.0), None, None, None], "how long it was left, and on"
    assert device.ended == ["task"] * 2, "it, and what was asked for meanwhile"


def test_only_the_comparison_that_was_left_last_is_kept() -> None:
    device = Device([NEAR, FAR, FAR, NEAR, NEAR])
    guard = device.guard()
    of_near, of_far = replace(COMPARISON, state="near"), replace(COMPARISON, state="far")

    with pytest.raises(DeviceChanged):
        finish(guard.in_state(steps(device, [], 5), "near", of_near))
    with pytest.raises(DeviceChanged):
        finish(guard.in_state(steps(device, [], 5), "far", of_far))
    assert device.ended == ["task"]

    finish(guard.in_state(steps(device, [], 5), "near", of_near))

    assert device.ended == ["task"] * 3, "the one that ended has no use for the other"
    guard.forget()
    assert device.ended == ["task"] * 3


SEARCH = SearchPlans(COMPARISON.program, "ios", DeviceFacts(None, (), (), 2), "{}", 1, 1.0)


def search(done: list[str], *parts: str) -> Search:
    """A search that is to be left after each part but the last one."""
    try:
        for part in parts:
            done.append(part)
            yield DeviceChanged("near", "far") if part != parts[-1] else None
        return SearchResult("plans")
    finally:
        done.append("ended")


def test_a_search_goes_on_where_it_was_once_it_is_asked_for_again() -> None:
    guard, done, other = Device([NEAR]).guard(), list[str](), list[str]()

    for measured in ("{}", '{"a": 1}'):
        with pytest.raises(DeviceChanged):
            finish(guard.go_on(search(done, "a", "b", "c"), replace(SEARCH, cached_us=measured)))
    with pytest.raises(DeviceChanged):
        finish(guard.go_on(search(other, "a", "b"), replace(SEARCH, state="far")))
    reply, _ = finish(guard.go_on(search([], "none"), SEARCH))

    assert reply == SearchResult("plans")
    assert (done, other) == (["a", "b", "c", "ended"], ["a"])


def test_searches_that_nobody_asks_for_end() -> None:
    guard = Device([NEAR]).guard()
    runs = [list[str]() for _ in range(MOST_SEARCHES + 1)]

    for number, done in enumerate(runs):
        with pytest.raises(DeviceChanged):
            finish(guard.go_on(search(done, "a", "b"), replace(SEARCH, seconds=float(number))))
    assert runs == [["a", "ended"], *[["a"]] * MOST_SEARCHES]

    guard.forget()
    assert runs == [["a", "ended"]] * (MOST_SEARCHES + 1)
