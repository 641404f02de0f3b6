"""Samples on a machine that interrupts them."""

from __future__ import annotations

from braid.engine.runtime.yielding import NetTime
from braid.engine.timing.samples import ATTEMPTS, HOPEFUL, IN_VAIN, TRIED_S, Sampler
from tests.clock import SetClock


class Machine:
    """Takes a quarter of the time of a sample for each try; counts the tries."""

    def __init__(self) -> None:
        self.clock, self.tries, self.is_busy = SetClock(), 0, True

    def __call__(self) -> NetTime:
        self.clock.now += TRIED_S / 4
        self.tries += 1
        return NetTime(100.0 + self.tries, self.is_busy, 0.5 * self.is_busy)

    def tries_of(self, sampler: Sampler) -> int:
        self.tries = 0
        assert sampler.uninterrupted(self).us == 101.0  # the least
        return self.tries


def test_where_no_try_helps_most_samples_are_tried_less() -> None:
    machine = Machine()
    sampler = Sampler(machine.clock)

    tries = [machine.tries_of(sampler) for _ in range(2 * HOPEFUL)]

    assert tries[:IN_VAIN] == [4] * IN_VAIN
    assert tries[IN_VAIN:HOPEFUL] == [ATTEMPTS] * (HOPEFUL - IN_VAIN)
    assert tries[HOPEFUL:] == [4, *[ATTEMPTS] * (HOPEFUL - 1)]


def test_after_one_that_nothing_interrupted_all_are_tried_as_before() -> None:
    machine = Machine()
    sampler = Sampler(machine.clock)
    for _ in range(IN_VAIN + 1):
        machine.tries_of(sampler)

    machine.is_busy = False
    assert machine.tries_of(sampler) == 1
    machine.is_busy = True

    assert machine.tries_of(sampler) == 4
