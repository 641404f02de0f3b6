"""A model that never ends on some values: a Loop inside a local function, its trips an input."""

from pathlib import Path

import numpy as np

from tests.models.graphs import from_x, own_function

FOREVER = np.full((1, 4), 1e15, np.float32)
"""Takes that many trips; ``np.ones`` takes one."""


def endless(path: Path) -> Path:
    """x [n, 4] -> x after as many trips as its first element says."""
    spin = """b = Loop<body = turn (int64 trip, bool going, float[] v) => (bool go_on, float[] u)
      { go_on = Identity(going)  u = Sin(v) }>(trips, , a)"""
    made = from_x(
        """row = Gather(x, zero)  count = Gather(row, zero)  size = Abs(count)
        trips = Cast<to=7>(size)  y = own.Spin(x, trips)""",
        functions=own_function("Spin (a, trips) => (b)", spin),
        zero=0,
    )
    path.write_bytes(made.SerializeToString())
    return path
