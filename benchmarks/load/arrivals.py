"""Random moments at which requests of an open loop begin; the same seed has the same ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield seconds since the start, ascending, without end."""
    random, at = np.random.default_rng(seed), 0.0
    while True:
        at += random.exponential(1 / rate_per_s)
        yield at
