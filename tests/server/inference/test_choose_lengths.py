"""The choice of lengths agrees with trying every set of them."""

from __future__ import annotations

import random
from itertools import chain, combinations

import pytest

from braid.server.inference.choose_lengths import HARDLY_MORE, choose_lengths, expected_s


def brute_force(
    rows: dict[int, int],
    unpadded_s: dict[int, float],
    planned_s: dict[int, float],
    fixed: set[int],
    most: int,
) -> float:
    """Least seconds of all rows over every choice of lengths, a row at a time."""
    least_s = float("inf")
    counts = range(min(most, len(rows)) + 1)
    for chosen in chain.from_iterable(combinations(sorted(rows), count) for count in counts):
        total_s = 0.0
        for length, count in rows.items():
            for _ in range(count):
                longer = [one for one in (*chosen, *fixed) if one >= length]
                padded_s = planned_s[min(longer)] if longer else unpadded_s[length]
                total_s += min(padded_s, unpadded_s[length])
        least_s = min(least_s, total_s)
    return least_s


@pytest.mark.parametrize("seed", range(150))
def test_no_other_choice_of_as_many_lengths_takes_less(seed: int) -> None:
    drawn = random.Random(seed)
    lengths = drawn.sample(range(1, 60), drawn.randrange(1, 9))
    rows = {length: drawn.randrange(1, 9) for length in lengths}
    fixed = set(drawn.sample(range(1, 60), drawn.randrange(0, 3)))
    slope, ratio = drawn.uniform(0, 2), drawn.uniform(0.3, 1.2)
    every = sorted({*lengths, *fixed})
    unpadded_s = {n: 5 + slope * n + drawn.uniform(0, 3) for n in every}
    planned_s = {n: ratio * unpadded_s[n] * drawn.uniform(0.8, 1.2) for n in every}
    most = drawn.randrange(0, 5)

    choice = choose_lengths(rows, unpadded_s.get, planned_s.get, fixed, most)

    least_s = brute_force(rows, unpadded_s, planned_s, fixed, most)
    assert len(choice.lengths) <= most
    assert {*choice.lengths} <= {*rows} - fixed
    beside = {*choice.lengths, *fixed}
    assert choice.seconds == pytest.approx(expected_s(rows, unpadded_s.get, planned_s.get, beside))
    assert least_s * 0.999_999 <= choice.seconds <= least_s * (1 + HARDLY_MORE)


def test_nothing_is_chosen_where_plans_are_no_faster() -> None:
    rows = dict.fromkeys(range(1, 100), 1)

    choice = choose_lengths(rows, float, lambda length: 1.01 * length)

    assert choice.lengths == ()


def test_lengths_that_come_often_are_chosen() -> None:
    rows = {10: 1000, 11: 1, 40: 1000, 90: 1}

    choice = choose_lengths(rows, float, lambda length: 0.5 * length, most=2)

    assert choice.lengths == (10, 40)


def test_a_histogram_of_many_lengths_is_read_in_time() -> None:
    drawn = random.Random(1)
    rows = {length: drawn.randrange(1, 1000) for length in range(1, 240)}

    choice = choose_lengths(rows, float, lambda length: 0.5 * length)

    assert len(choice.lengths) == 4
