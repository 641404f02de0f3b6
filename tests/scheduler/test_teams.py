"""Teams of a sequence of units, by brute force over all of them."""

from __future__ import annotations

import random
from itertools import chain, combinations, pairwise, product

import pytest

from braid.scheduler.teams import (
    cheapest,
    cheapest_spans,
    plans_to_measure,
    spans_to_measure,
    team_sizes,
)


def table(seed: int, sizes: list[int], units: int) -> dict[tuple[int, int, int], float]:
    """Microseconds of a unit, by the team before it and its own."""
    rng = random.Random(seed)
    return {
        (unit, before, team): float(rng.randint(1, 60))
        for unit in range(units)
        for before in sizes
        for team in sizes
    }


@pytest.mark.parametrize("sizes", [[1, 2], [1, 2, 4]])
@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_teams_takes_less(seed: int, sizes: list[int]) -> None:
    units, switch_us = 6, 5.0
    us = table(seed, sizes, units)
    first = {team: us[0, team, team] for team in sizes}

    def took(teams: tuple[int, ...]) -> list[float]:
        pairs = pairwise(teams)
        return [first[teams[0]], *(us[unit, *pair] for unit, pair in enumerate(pairs, start=1))]

    def cost(teams: tuple[int, ...]) -> float:
        return sum(took(teams)) + switch_us * sum(a != b for a, b in pairwise(teams))

    plans = list(chain(*plans_to_measure(units, sizes)))
    teams, predicted_us = cheapest(plans, [took(plan) for plan in plans], switch_us)

    assert cost(teams) == min(cost(every) for every in product(sizes, repeat=units))
    assert predicted_us == sum(took(teams))


def test_every_pair_of_sizes_is_measured_at_every_unit() -> None:
    sizes = [1, 2, 4]

    uniform, mixed = plans_to_measure(5, sizes)

    for unit in range(1, 5):
        assert {plan[unit - 1 : unit + 1] for plan in uniform + mixed} == set(
            product(sizes, repeat=2)
        )
    assert uniform == [(1,) * 5, (2,) * 5, (4,) * 5]


def test_a_chain_of_small_units_stays_on_one_lane_and_a_large_one_takes_all() -> None:
    def took(plan: tuple[int, ...]) -> list[float]:
        work = [10.0, 10.0, 10.0, 400.0, 400.0, 10.0]
        exchange = [
            20.0 * (team > 1 or before > 1) for before, team in zip((1, *plan), plan, strict=False)
        ]
        return [us / team + cost for us, team, cost in zip(work, plan, exchange, strict=True)]

    plans = list(chain(*plans_to_measure(6, [1, 2])))

    teams, _ = cheapest(plans, [took(plan) for plan in plans])

    assert teams[:5] == (1, 1, 1, 2, 2)


@pytest.mark.parametrize(
    ("threads", "near", "sizes"),
    [(1, 1, [1]), (2, 2, [1, 2]), (2, 1, [1, 2]), (6, 6, [1, 2, 4, 6]), (64, 8, [1, 2, 4, 8, 64])],
)
def test_teams_double_within_a_group_of_near_lanes(
    threads: int, near: int, sizes: list[int]
) -> None:
    assert team_sizes(threads, near) == sizes


PIECES = [range(2), range(2, 5), range(5, 6), range(6, 9)]


def test_every_row_of_neighbouring_pieces_is_measured_once() -> None:
    sets = spans_to_measure(PIECES)

    spans = [span for several in sets for span in several]
    rows = {
        range(one.start, other.stop)
        for at, one in enumerate(PIECES)
        for other in PIECES[at:]
        if other.stop - one.start > 1
    }
    assert sorted(spans, key=lambda span: (span.start, span.stop)) == sorted(
        rows, key=lambda span: (span.start, span.stop)
    )
    for several in sets:
        assert all(one.stop <= other.start for one, other in pairwise(several))
    assert spans_to_measure([]) == spans_to_measure([range(1)]) == []


def test_rows_of_pieces_that_cannot_run_as_one_are_left_out() -> None:
    sets = spans_to_measure(PIECES, lambda span: not (span.start == 0 and span.stop > 5))

    assert {span for several in sets for span in several} == {
        *(range(2), range(5), range(2, 5), range(2, 6), range(2, 9), range(5, 9), range(6, 9))
    }


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_disjoint_spans_takes_less(seed: int) -> None:
    rng, units = random.Random(seed), 11
    units_us = [float(rng.randint(5, 20)) for _ in range(units)]
    sets = spans_to_measure(PIECES)
    span_us = {span: float(rng.randint(5, 15) * len(span)) for some in sets for span in some}

    def launches_us(spans: tuple[range, ...]) -> list[float]:
        by_first = {span.start: span_us[span] for span in spans}
        inner = {unit for span in spans for unit in span[1:]}
        return [by_first.get(unit, us) for unit, us in enumerate(units_us) if unit not in inner]

    spans, predicted_us = cheapest_spans(sets, [launches_us(some) for some in sets], units_us)

    every = [
        chosen
        for count in range(len(PIECES) + 1)
        for chosen in combinations(span_us, count)
        if all(one.stop <= other.start for one, other in pairwise(sorted(chosen, key=min)))
    ]
    assert predicted_us == min(sum(launches_us(chosen)) for chosen in every)
    assert predicted_us == sum(launches_us(tuple(spans)))
