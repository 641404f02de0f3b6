"""Covers of rows by batches, beside every collection of batches that holds the rows."""

from collections.abc import Mapping
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.core.cover import HORIZON_ROWS, Cover

LATENCIES = st.dictionaries(st.integers(1, 16), st.integers(1, 50), min_size=1, max_size=3)


def cheapest(latencies: Mapping[int, int], rows: int) -> int:
    """What the cheapest of all collections of batches takes that hold so many rows."""
    return min(
        sum(latencies[size] for size in sizes)
        for count in range(1, rows + 1)
        for sizes in combinations_with_replacement(latencies, count)
        if sum(sizes) >= rows
    )


def chosen(cover: Cover, sizes: list[int], rows: int) -> list[int]:
    batches = []
    while rows > 0:
        batches.append(sizes[cover.first(rows)])
        rows -= batches[-1]
    return batches


@settings(deadline=None)
@given(latencies=LATENCIES, rows=st.integers(1, 16))
def test_no_collection_of_batches_is_cheaper(latencies: dict[int, int], rows: int) -> None:
    cover = Cover(list(latencies.items()))

    batches = chosen(cover, list(latencies), rows)

    assert cover.least(rows) == pytest.approx(cheapest(latencies, rows))
    assert sum(latencies[size] for size in batches) == pytest.approx(cover.least(rows))


@pytest.mark.parametrize(
    ("latencies", "rows", "batches"),
    [
        ({1: 13.5, 8: 56.0}, 2, [1, 1]),  # cut
        ({1: 13.5, 8: 56.0}, 6, [8]),  # padded
        ({1: 13.5, 8: 56.0}, 10, [8, 1, 1]),
        ({1: 13.5, 8: 56.0}, 14, [8, 8]),  # both
        ({1: 5.0, 8: 5.0}, 1, [1]),  # of equals, the one with the least padding
        ({1: 5.0, 4: 5.0, 8: 5.0}, 3, [4]),
    ],
)
def test_rows_are_cut_or_padded_as_is_cheapest(
    latencies: dict[int, float], rows: int, batches: list[int]
) -> None:
    assert chosen(Cover(list(latencies.items())), list(latencies), rows) == batches


def test_many_rows_run_in_the_batch_that_is_cheapest_a_row() -> None:
    cover = Cover([(1, 3.0), (64, 64.0), (200, 230.0)])

    assert cover.least(10_000) == pytest.approx(156 * 64.0 + 16 * 3.0)
    assert cover.first(10_000) == 1
    assert cover.least(HORIZON_ROWS + 1) == pytest.approx(8 * 64.0 + 3.0)


@pytest.mark.parametrize(
    ("rows", "batches"),
    [
        (600, [1024]),  # though rows are cheapest in the largest batch
        (5000, [4096, 1024]),
        (9000, [4096, 4096, 1024]),
    ],
)
def test_rows_beyond_the_horizon_are_not_padded_to_a_dearer_batch(
    rows: int, batches: list[int]
) -> None:
    latencies = {1: 50.0, 128: 60.0, 1024: 170.0, 4096: 310.0}

    assert chosen(Cover(list(latencies.items())), list(latencies), rows) == batches
