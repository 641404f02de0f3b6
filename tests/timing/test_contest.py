"""Whole models against each other; entrants whose latency is known, because they sleep."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from core.errors import PreconditionFailed, WorkerFault
from engine.pause import Pause
from engine.timing.contest import ContestOptions, Entrant, Result, hold_contest
from engine.timing.runs import timed, timed_aside
from tests.timing.running import finish

REFERENCE = {"y": torch.tensor([1.0, -2.0])}
OPTIONS = ContestOptions(tolerance=1e-4, min_rounds=5, max_rounds=10, budget_s=5.0)


class Sleeper:
    """Sleeps, then gives outputs that are off by ``error``; counts its runs."""

    def __init__(self, ms: float, error: float = 0.0) -> None:
        self.ms, self.error, self.runs = ms, error, 0

    def __call__(self, inputs: Mapping[str, Tensor], _: Pause) -> dict[str, Tensor]:
        self.runs += 1
        time.sleep(self.ms / 1e3)
        return {"y": REFERENCE["y"] * (1 + self.error)}


def held(*sleepers: Sleeper, options: ContestOptions = OPTIONS) -> list[Result]:
    entrants = [Entrant(timed(sleeper)) for sleeper in sleepers]
    results, _ = finish(hold_contest(entrants, {}, REFERENCE, options))
    return results


def test_the_clearly_slower_leave_early_and_the_baseline_stays() -> None:
    slow, fast, slowest = Sleeper(8), Sleeper(4), Sleeper(30)

    baseline, faster, slower = held(slow, fast, slowest)

    assert baseline.runs == faster.runs == 10
    assert slower.runs == 2
    assert faster.speedup == pytest.approx(2.0, rel=0.2)
    assert slower.latency_us is not None
    assert slower.latency_us >= 30_000


def test_who_is_wrong_runs_once() -> None:
    right, wrong = Sleeper(1), Sleeper(1, error=0.01)

    _, result = held(right, wrong)

    assert wrong.runs == 1
    assert (result.latency_us, result.runs) == (None, 0)
    assert result.max_rel_error == pytest.approx(0.01)


def test_who_fails_says_why_and_a_failing_baseline_ends_the_contest() -> None:
    def fails(_: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        raise PreconditionFailed("no session")

    entrants = [Entrant(timed(Sleeper(1))), Entrant(timed_aside(fails))]
    results, _ = finish(hold_contest(entrants, {}, REFERENCE, OPTIONS))
    assert results[1].problem == "no session"

    with pytest.raises(WorkerFault, match="no session"):
        finish(hold_contest(entrants[::-1], {}, REFERENCE, OPTIONS))


def test_an_empty_budget_still_holds_the_least_number_of_rounds() -> None:
    few = ContestOptions(tolerance=1e-4, min_rounds=3, budget_s=0.001)

    assert [result.runs for result in held(Sleeper(2), Sleeper(2), options=few)] == [3, 3]


def test_every_run_is_followed_by_a_turn_for_inference() -> None:
    sleepers = [Sleeper(1), Sleeper(1)]
    entrants = [Entrant(timed(sleeper)) for sleeper in sleepers]

    _, turns = finish(hold_contest(entrants, {}, REFERENCE, OPTIONS))

    assert turns >= sum(sleeper.runs for sleeper in sleepers)


class Request(Pause):
    """One that takes 10 ms, each time that somebody pauses."""

    def __init__(self) -> None:
        self.arrived, self.sent = socket.socketpair()
        self.sent.send(b"r")

    @property
    def arrivals(self) -> int | None:
        return self.arrived.fileno()

    def answer(self) -> bool:
        self.arrived.recv(1)
        time.sleep(0.01)
        return True

    def __call__(self) -> bool:
        time.sleep(0.01)
        return True


def test_requests_in_the_middle_of_a_run_are_not_in_its_time() -> None:
    def pauses(inputs: Mapping[str, Tensor], pause: Pause) -> Mapping[str, Tensor]:
        time.sleep(0.002)
        pause()
        return {}

    def cannot_pause(_: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        time.sleep(0.03)
        return {}

    request = Request()
    try:
        for run, least_ms in ((timed(pauses), 2), (timed_aside(cannot_pause), 10)):
            began = time.perf_counter()
            ran = run({}, request)
            elapsed_us = (time.perf_counter() - began) * 1e6
            assert ran.was_interrupted
            assert (least_ms - 1) * 1e3 < ran.latency_us
            assert ran.latency_us < elapsed_us - (9e3 if least_ms == 2 else 0)
    finally:
        request.arrived.close()
        request.sent.close()
