import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import states
from benchmarks.states import LOOK_S, WAIT_S, add_state, by_state, in_state, wait_for


def machine(seen: Sequence[str]) -> Callable[[], str]:
    looks = iter(seen)
    return lambda: next(looks)


def test_a_round_with_a_change_is_dropped_and_held_again() -> None:
    held: list[int] = []
    slept: list[float] = []

    def hold() -> int:
        held.append(len(held))
        return len(held)

    look = machine(["far", "near", "far", "near", "near"])
    assert in_state("near", hold, held.pop, look, slept.append) == 1
    assert held == [0]
    assert slept == [LOOK_S]


def test_without_a_state_rounds_are_held_as_the_machine_is() -> None:
    def look() -> str:
        raise AssertionError("nobody asked")

    assert in_state("", lambda: 7, look=look) == 7


def test_a_state_that_never_comes_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="not far for 60 minutes"):
        wait_for("far", lambda: "near", lambda _: None)
    assert WAIT_S == 3600


def test_both_states_have_results_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "wait_for", lambda _: None)
    parser = argparse.ArgumentParser()
    add_state(parser)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--json", type=Path, default=Path("all.json"))
    ran: list[tuple[str, Path, Path]] = []

    def run(options: argparse.Namespace) -> int:
        ran.append((options.state, options.out, options.json))
        return len(ran) - 1

    assert by_state(parser.parse_args(["--state", "both"]), run) == 1
    assert by_state(parser.parse_args(["--state", "far"]), run) == 2
    assert ran == [
        ("near", Path("results/near"), Path("all-near.json")),
        ("far", Path("results/far"), Path("all-far.json")),
        ("far", Path("results"), Path("all.json")),
    ]
