"""Growth is told from noise, peaks and steps, by its interval."""

from __future__ import annotations

import random

import pytest

from campaigns.soak.slopes import Series, slope

HOUR_S = 3600.0


def series(growth_an_hour: float, noise: float = 0.0, seed: int = 1) -> Series:
    """An hour of samples around 100 MB, every two seconds."""
    chance = random.Random(seed)
    return [
        (
            float(second),
            1e8 * (1 + growth_an_hour * second / HOUR_S + noise * chance.uniform(-1, 1)),
        )
        for second in range(0, 3600, 2)
    ]


def test_a_constant_does_not_grow() -> None:
    found = slope(series(0.0))

    assert (found.an_hour, found.least, found.most) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_slope_lies_in_its_interval_and_noise_is_no_leak(seed: int) -> None:
    found = slope(series(0.0, noise=0.05, seed=seed))

    assert found.least < 0.0 < found.most
    assert not found.is_above(0.01)


@pytest.mark.parametrize("growth", [0.03, 0.1, 1.0])
def test_a_leak_is_found_in_noise(growth: float) -> None:
    found = slope(series(growth, noise=0.02))

    assert found.is_above(0.01)
    assert found.least < growth / (1 + growth / 2) < found.most


def test_a_peak_is_no_leak() -> None:
    peaked = [(second, value * (3 if 2000 < second < 2300 else 1)) for second, value in series(0.0)]

    assert not slope(peaked).is_above(0.01)


def test_a_short_series_says_nothing() -> None:
    assert not slope([(0.0, 1.0), (1.0, 100.0)]).is_above(0.01)
