from math import inf

import pytest

from braid.server.inference.batching.batch_sizes import CompletionPlan
from braid.server.inference.latencies import FORGOTTEN_AFTER, LatencyTable, Way
from braid.server.inference.shape_latencies import (
    MOST_UNSEEN,
    REDRAWN,
    ShapeLatencies,
    ShapeTimes,
    sizes_up_to,
)

SIZES = (1, 8)


def times_of(*observed: tuple[int, float], beside: int = 1) -> ShapeTimes:
    """Times of a session for any shape that has run so many elements in so many seconds."""
    times = ShapeTimes()
    times.is_any_size, times.beside = True, beside
    for elements, seconds in observed:
        times.observe(elements, seconds, 1)
    return times


@pytest.mark.parametrize("elements", [60, 61, 63])
def test_rows_are_expected_to_take_what_as_many_elements_have_taken(elements: int) -> None:
    times = times_of((elements, 0.008))

    expected_s = ShapeLatencies(SIZES, times, 20).seconds(3)

    assert expected_s == pytest.approx(0.008 * 60 / elements)


def test_between_two_sizes_time_grows_evenly_and_beyond_them_by_the_elements() -> None:
    times = times_of((15, 0.002), (60, 0.005))

    assert times.expected_s(30) == pytest.approx(0.003)
    assert times.expected_s(600) == pytest.approx(0.05)
    assert times.expected_s(3) == pytest.approx(0.0004)


def test_short_rows_share_a_batch_and_long_ones_do_not() -> None:
    times = times_of(*((n, 0.004 + n * 0.0001) for n in (4, 7, 15, 30, 60, 120, 240, 480, 960)))
    sizes = [
        CompletionPlan(ShapeLatencies(SIZES, times, elements)).best_way(4).size
        for elements in (4, 480)
    ]

    assert sizes == [4, 1]


def test_a_batch_has_as_many_rows_as_wait() -> None:
    table = ShapeLatencies(SIZES, times_of(beside=2), 10)

    assert [table.way_for(rows, 1) for rows in (1, 3, 8)] == [Way(1), Way(3), Way(8)]
    assert table.way_for(5, 2) == Way(5, 2)


def test_without_a_session_batches_have_the_scheduled_sizes() -> None:
    times = times_of(beside=2)
    table = ShapeLatencies(SIZES, times, 10)

    times.is_any_size, times.beside = False, 1
    without = ShapeLatencies(SIZES, times, 10)

    assert (without.sizes, without.beside, without.way_for(2, 2)) == (SIZES, (), Way(8))
    times.is_any_size = True
    without.adopt()
    assert without.sizes == table.sizes


def test_side_by_side_is_tried_and_left_where_it_does_not_pay() -> None:
    times = times_of((60, 0.010), beside=2)
    table = ShapeLatencies(SIZES, times, 60)
    assert table.seconds(1, 2) < 0.020

    for _ in range(30):
        times.observe(60, 0.030, 2)
    other = ShapeLatencies(SIZES, times, 61)

    assert other.seconds(1, 2) > 2 * other.seconds(1)
    for _ in range(FORGOTTEN_AFTER):
        times.observe(60, 0.010, 1)
    assert other.seconds(1, 2) < 2 * other.seconds(1), "tried again"


def test_while_others_wait_all_runs_are_side_by_side_or_none_is() -> None:
    times = times_of((60, 0.010), beside=2)
    table = ShapeLatencies(SIZES, times, 60)
    plan = CompletionPlan(table)

    def ways() -> set[int]:
        return {plan.best_way(rows).beside for rows in (2, 3, 8)}

    assert ways() == {2}, "tried"
    for _ in range(30):
        times.observe(60, 0.0195, 2)  # less than two, but no run on all threads must come between
    assert ways() == {1}
    assert plan.best_way(1, is_alone=True) == Way(1)


def runs_until(times: ShapeTimes, *, goes_beside: bool) -> int:
    """Run as it goes, side by side without gain, until it goes otherwise; returns how often."""
    for runs in range(10 * FORGOTTEN_AFTER):
        if times.goes_beside == goes_beside:
            return runs
        times.observe(60, *((0.020, 2) if times.goes_beside else (0.010, 1)))
    raise AssertionError("it goes on as before")


def test_what_did_not_pay_is_tried_again_later_and_later() -> None:
    times = times_of((60, 0.010), beside=2)
    runs = []
    for _ in range(3):
        runs_until(times, goes_beside=False)
        runs.append(runs_until(times, goes_beside=True))

    assert runs == [FORGOTTEN_AFTER, 2 * FORGOTTEN_AFTER, 4 * FORGOTTEN_AFTER]


def test_plans_of_schedules_run_as_the_others_of_a_crowd_do() -> None:
    times = times_of((60, 0.010), beside=1)
    table = LatencyTable([1], times)
    table.expect(1, 0.010)
    table.expect(1, 0.018, 2)
    plan = CompletionPlan(table)
    assert plan.best_way(8) == Way(1, 2), "as is best: nothing else runs"

    times.beside = 2
    for _ in range(100):
        times.weigh(0.010, 0.011)
    assert plan.best_way(8) == Way(1)
    for _ in range(100):
        times.weigh(0.010, 0.008)
    assert plan.best_way(8) == Way(1, 2)


def test_a_crowd_goes_side_by_side_if_its_requests_together_take_less_so() -> None:
    times = times_of((60, 0.010), beside=2)
    for _ in range(30):
        times.observe(60, 0.015, 2)
    assert times.costs_s(60).beside_s == pytest.approx(0.0075, rel=0.05)

    for _ in range(200):  # most have plans on all threads that take half of the session's time
        times.weigh(0.005, 0.0075)
        times.weigh(*times.costs_s(60))
    assert not times.goes_beside
    for _ in range(200):
        times.weigh(*times.costs_s(60))
    assert times.goes_beside
    times.weigh(0.001, inf)  # nothing is known of a session
    assert times.goes_beside


def test_what_one_shape_takes_side_by_side_is_learned_in_that_shape() -> None:
    table = ShapeLatencies(SIZES, times_of((60, 0.010), beside=2), 60)

    table.observe(1, 0.013, 2)

    assert table.seconds(1, 2) == pytest.approx(0.013)


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (3, (1, 2, 3)), (20, (*range(1, 9), 12, 16, 20))]
)
def test_each_small_number_of_rows_is_weighed(most: int, sizes: tuple[int, ...]) -> None:
    assert sizes_up_to(most) == sizes


def test_what_has_not_run_for_long_is_told_by_others_again() -> None:
    usual = [(60, 0.006), (120, 0.012)]
    times = times_of(*usual, (240, 0.500))  # cold
    assert ShapeLatencies(SIZES, times, 60).seconds(4) == pytest.approx(0.5)

    for elements, seconds in usual * (MOST_UNSEEN // 2 + REDRAWN):
        times.observe(elements, seconds)

    assert ShapeLatencies(SIZES, times, 60).seconds(4) == pytest.approx(0.024)
