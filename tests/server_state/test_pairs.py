"""Latencies compared turn by turn."""

from __future__ import annotations

import random

import pytest

from server.jobs.pairs import ratio


def test_what_slows_both_down_does_not_show() -> None:
    machine = [1.0, 1.0, 3.0, 1.2, 1.0, 0.9]

    found = ratio([104 * speed for speed in machine], [100 * speed for speed in machine])

    assert (found.least, found.median, found.most) == pytest.approx((1.04, 1.04, 1.04))


@pytest.mark.parametrize(("turns", "left_out"), [(1, 0), (4, 0), (8, 1), (12, 2), (15, 3)])
def test_the_interval_is_that_of_the_sign_test(turns: int, left_out: int) -> None:
    ratios = [1 + number / 100 for number in range(turns)]

    found = ratio(ratios, [1.0] * turns)

    assert (found.least, found.most) == (ratios[left_out], ratios[-1 - left_out])


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    generator = random.Random(0)
    held = 0
    for _ in range(400):
        samples = [generator.lognormvariate(0.0, 0.05) for _ in range(30)]
        found = ratio(samples[:15], samples[15:])
        held += found.least <= 1.0 <= found.most

    assert 0.93 <= held / 400 <= 0.99  # 96.5 % of the intervals of 15 turns
