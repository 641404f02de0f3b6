import pytest

from benchmarks.fleet import following
from benchmarks.fleet.stand import Stand

FIRST = 6
"""Machines of test_campaigns.py may run at the same time."""

pytestmark = pytest.mark.fleet


def test_inferences_send_no_sql(stand: Stand) -> None:
    with stand.fleet((1,), environment=following.STILL, first=FIRST) as fleet:
        seen = following.silence(stand, fleet)

    assert not seen.broken, seen.figures
