"""A model version whose runs hold devices up is refused for a while; others go on."""

from __future__ import annotations

import pytest

from core.errors import ModelQuarantined, RunStopped, RunTooLong
from server.batching.quarantine import REFUSED_S, STRIKES, WITHIN_S, Quarantine
from tests.server.batching import Bench, FakeModel


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_version_is_refused_for_a_while_after_three_strikes() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    assert [quarantine.strike("m", 1) for _ in range(STRIKES)] == [False, False, True]

    clock.now = REFUSED_S - 100
    with pytest.raises(ModelQuarantined, match=r"version 1 of 'm' .* refused for 100 s more"):
        quarantine.check("m", 1)
    quarantine.check("m", 2)

    clock.now = REFUSED_S
    quarantine.check("m", 1)
    assert quarantine.strike("m", 1) is False, "counted anew"


def test_strikes_that_lie_far_apart_do_not_add_up() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    for _ in range(2 * STRIKES):
        clock.now += WITHIN_S / (STRIKES - 1) + 1
        assert not quarantine.strike("m", 1)


def test_a_version_that_is_deleted_leaves_nothing_behind() -> None:
    quarantine = Quarantine(Clock())
    for _ in range(STRIKES):
        quarantine.strike("m", 1)
    quarantine.forget("m", 1)

    quarantine.check("m", 1)


async def test_runs_that_take_too_long_end_in_quarantine_and_other_models_are_served() -> None:
    bench = Bench({1: 0.01})
    other = FakeModel({1: 0.01})
    other.name = "other"
    bench.device.is_bad = lambda row: row < STRIKES
    bench.device.error = RunTooLong("it was ended after 20 s")
    for _ in range(STRIKES):
        sent = bench.send()
        await bench.clock.advance(1.0)
        assert isinstance(sent.exception(), RunTooLong)

    with pytest.raises(ModelQuarantined):
        await bench.send()
    fine = bench.send(model=other)
    await bench.clock.advance(1.0)
    assert await fine == [STRIKES + 1]


async def test_runs_that_were_ended_for_their_callers_are_no_strikes() -> None:
    bench = Bench({1: 0.01})
    bench.device.is_bad = lambda row: row < 2 * STRIKES
    bench.device.error = RunStopped("nobody waited for this run any more")
    for _ in range(2 * STRIKES):
        bench.send()
        await bench.clock.advance(1.0)

    fine = bench.send()
    await bench.clock.advance(1.0)
    assert await fine == [2 * STRIKES]
