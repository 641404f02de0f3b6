"""Whole models against each other; entrants whose latency is known, because they sleep."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from core.errors import PreconditionFailed, WorkerFault
from engine.timing.contest import ContestOptions, Entrant, Result, hold_contest
from tests.timing.running import finish

REFERENCE = {"y": torch.tensor([1.0, -2.0])}
OPTIONS = ContestOptions(tolerance=1e-4, min_rounds=5, max_rounds=10, budget_s=5.0)


class Sleeper:
    """Sleeps, then gives outputs that are off by ``error``; counts its runs."""

    def __init__(self, ms: float, error: float = 0.0) -> None:
        self.ms, self.error, self.runs = ms, error, 0

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.runs += 1
        time.sleep(self.ms / 1e3)
        return {"y": REFERENCE["y"] * (1 + self.error)}


def held(*sleepers: Sleeper, options: ContestOptions = OPTIONS) -> list[Result]:
    results, _ = finish(hold_contest([Entrant(s) for s in sleepers], {}, REFERENCE, options))
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

    entrants = [Entrant(Sleeper(1)), Entrant(fails)]
    results, _ = finish(hold_contest(entrants, {}, REFERENCE, OPTIONS))
    assert results[1].problem == "no session"

    with pytest.raises(WorkerFault, match="no session"):
        finish(hold_contest(entrants[::-1], {}, REFERENCE, OPTIONS))


def test_an_empty_budget_still_holds_the_least_number_of_rounds() -> None:
    few = ContestOptions(tolerance=1e-4, min_rounds=3, budget_s=0.001)

    assert [result.runs for result in held(Sleeper(2), Sleeper(2), options=few)] == [3, 3]


def test_every_run_is_followed_by_a_turn_for_inference() -> None:
    sleepers = [Sleeper(1), Sleeper(1)]

    _, turns = finish(hold_contest([Entrant(s) for s in sleepers], {}, REFERENCE, OPTIONS))

    assert turns >= sum(sleeper.runs for sleeper in sleepers)
