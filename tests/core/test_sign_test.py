import random

import pytest

from braid.core.measurement import Speed, speed_text
from braid.core.sign_test import sign_test_interval, speed_beside


def test_what_slows_both_down_does_not_show() -> None:
    machine = [1.0, 1.0, 3.0, 1.2, 1.0, 0.9]

    found = speed_beside([100 * speed for speed in machine], [104 * speed for speed in machine])

    assert found is not None
    assert (found.least, found.median, found.most) == pytest.approx((1.04, 1.04, 1.04))


@pytest.mark.parametrize(("turns", "left_out"), [(5, 0), (8, 1), (12, 2), (15, 3)])
def test_the_interval_is_that_of_the_sign_test(turns: int, left_out: int) -> None:
    ratios = [1 + number / 100 for number in range(turns)]

    found = sign_test_interval(ratios)

    assert found is not None
    assert (found.least, found.most) == (ratios[left_out], ratios[-1 - left_out])


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_few_turns_prove_nothing(turns: int) -> None:
    assert sign_test_interval([1.5] * turns) is None


def test_a_speed_without_an_interval_is_not_faster_without_doubt() -> None:
    assert not Speed(1.5).is_faster
    assert not Speed(1.5, 1.0, 2.0).is_faster
    assert Speed(1.5, 1.01, 2.0).is_faster


def test_a_speed_has_one_text() -> None:
    assert speed_text(Speed(1.0312, 1.0118, 1.0482)) == "1.031x (1.012 to 1.048)"
    assert speed_text(Speed(1.5)) == "1.500x"
    assert speed_text(Speed(1.0, 1.0, 1.0)) == "1.000x"
    assert speed_text(None) == "-"


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    generator = random.Random(0)
    held = 0
    for _ in range(400):
        samples = [generator.lognormvariate(0.0, 0.05) for _ in range(30)]
        found = speed_beside(samples[15:], samples[:15])
        assert found is not None
        assert found.least is not None
        assert found.most is not None
        held += found.least <= 1.0 <= found.most

    assert 0.93 <= held / 400 <= 0.99  # 96.5 % of the intervals of 15 turns
