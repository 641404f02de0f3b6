"""How long a child process is waited for, by what it computes. Times are made up."""

from __future__ import annotations

import asyncio
import os
from math import inf
from time import process_time

import pytest

from braid.engine.processes.child_time import (
    ROUNDS,
    DidNothing,
    TookTooLong,
    cpu_time_s,
    wait_for_child,
)

ROUND_S = 0.001


class Child:
    """A process that computes for so long in each round, and answers at the end if it may."""

    def __init__(self, *rounds_s: float, answers: bool = False) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rounds = iter(rounds_s)
        self._answers = answers
        self._total_s = 0.0

    def cpu_time_s(self, pid: int) -> float:
        round_s = next(self._rounds, None)
        if round_s is None and self._answers and not self.answer.done():
            self.answer.set_result("at last")
        self._total_s += 0.01 if round_s is None else round_s
        return self._total_s

    async def wait(self, cpu_seconds: float) -> None:
        await wait_for_child(
            self.answer, 1, ROUND_S, cpu_seconds=cpu_seconds, cpu_time_s=self.cpu_time_s
        )


async def test_a_child_that_gets_on_slowly_may_take_longer_than_its_limit() -> None:
    child = Child(*[0.01] * 5, answers=True)

    await child.wait(cpu_seconds=1.0)

    assert child.answer.result() == "at last"


async def test_a_child_that_used_its_share_is_told_from_one_that_got_none() -> None:
    with pytest.raises(TookTooLong):
        await Child(0.0, 0.95).wait(cpu_seconds=1.0)
    with pytest.raises(DidNothing):
        await Child(0.0, 0.2, 0.0).wait(cpu_seconds=1.0)


async def test_no_child_is_waited_for_without_end() -> None:
    with pytest.raises(TookTooLong):
        await Child(*[0.01] * (ROUNDS + 1)).wait(cpu_seconds=inf)


def test_the_time_of_a_process_is_that_of_all_its_threads() -> None:
    assert cpu_time_s(os.getpid()) == pytest.approx(process_time(), abs=0.5)
    assert cpu_time_s((1 << 22) + 1) == 0.0, "no process has this number"
