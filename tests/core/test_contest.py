"""Contest of candidates in service: rules of the policy, against latencies that are given."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from braid.core.contest import BLOCK, LEAST_SPAN_S, LEFT_S, LOSS, Contest
from braid.core.errors import ImpossibleLatency

Latencies = Mapping[str, float]


def serve(
    contest: Contest,
    latencies: Latencies,
    requests: int,
    *,
    noise: float = 0.0,
    times: Iterator[float] | None = None,
    **options: bool | float,
) -> list[str]:
    """Serve requests one after the other; returns the candidates chosen."""
    chance, chosen = random.Random(7), []
    for _ in range(requests):
        name = contest.next(**options)  # type: ignore[arg-type]
        run_us = latencies[name] * chance.lognormvariate(0.0, noise)
        contest.took(name, run_us, at=None if times is None else next(times))
        chosen.append(name)
    return chosen


def every(seconds: float) -> Iterator[float]:
    """Times that lie apart by so many seconds."""
    at = 0.0
    while True:
        at += seconds
        yield at


def test_the_best_estimate_serves_first_and_the_simpler_one_among_equals() -> None:
    assert Contest("abc", estimates_us=[130.0, 100.0, 104.0]).incumbent == "b"
    assert Contest("abc", estimates_us=[100.5, 100.0, 140.0]).incumbent == "a"
    assert Contest("ab").candidates == ("a", "b")


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_faster_candidate_serves_whatever_the_screening_said(noise: float) -> None:
    contest = Contest("abc", estimates_us=[100.0, 108.0, 112.0])

    serve(contest, {"a": 110.0, "b": 80.0, "c": 100.0}, 600, noise=noise)

    assert contest.incumbent == "b"


def test_what_slows_all_candidates_down_changes_nothing() -> None:
    contest = Contest("ab", estimates_us=[100.0, 110.0])
    speed = 1.0

    for _ in range(2000):
        name = contest.next()
        speed = max(0.3, speed * random.Random(speed).choice([0.97, 1.03]))
        contest.took(name, speed * {"a": 100.0, "b": 110.0}[name])

    row = contest.table()[-1]
    assert row.name == "b" or contest.candidates == ("a",)
    assert contest.incumbent == "a"


def test_a_slow_candidate_goes_after_a_minute_and_the_contest_is_decided() -> None:
    contest = Contest("ab", estimates_us=[100.0, 130.0])
    slow = {"a": 100.0, "b": 130.0}

    serve(contest, slow, 2000, times=every(LEAST_SPAN_S / 4000))
    within_the_minute = contest.candidates
    serve(contest, slow, 4000, times=every(LEAST_SPAN_S / 1000))

    assert within_the_minute == ("a", "b")
    assert contest.candidates == ("a",)
    assert contest.is_decided
    assert {contest.next() for _ in range(50)} == {"a"}


def test_an_order_that_changes_within_a_minute_is_followed_and_then_decided_by_the_mean() -> None:
    contest, times = Contest("ab", estimates_us=[100.0, 130.0]), every(LEAST_SPAN_S / 2000)
    near, far = {"a": 100.0, "b": 130.0}, {"a": 150.0, "b": 100.0}

    incumbents = []
    for latencies in (near, far) * 4:
        serve(contest, latencies, 1500, times=times)
        incumbents.append(contest.incumbent)
    assert incumbents[-4:] == ["a", "b", "a", "b"]
    assert not contest.is_decided

    for latencies in (near, far) * 2:
        serve(contest, latencies, 1500, times=times, free=True)
    assert (contest.is_decided, contest.incumbent) == (True, "b")


def test_challengers_take_turns() -> None:
    contest = Contest("abc")

    serve(contest, {"a": 100.0, "b": 101.0, "c": 104.0}, 400, free=True, times=every(0.01))

    assert abs(contest.table()[1].pairs - contest.table()[2].pairs) <= 1


def test_equal_candidates_are_decided_in_favour_of_the_simpler_one() -> None:
    contest = Contest("ab", estimates_us=[102.0, 100.0])

    serve(contest, {"a": 100.0, "b": 100.0}, 3000, noise=0.01, free=True)

    assert contest.is_decided
    assert contest.incumbent == "a"


def test_pairs_are_rarer_where_a_change_costs_more() -> None:
    pairs = {}
    for first_run in (1.0, 1.4):
        contest, before = Contest("ab"), ""
        for _ in range(5000):
            name = contest.next()
            contest.took(name, 100.0 if name == before else 100.0 * first_run)
            before = name
        pairs[first_run] = contest.table()[0].pairs

    assert pairs[1.4] <= 5000 * LOSS / (2 * 0.4)
    assert pairs[1.0] > 3 * pairs[1.4]


@pytest.mark.parametrize("share", [0.10, 0.05])
def test_challengers_get_at_most_their_share_after_a_hundred_pairs(share: float) -> None:
    contest = Contest("ab", loser_share=share)
    while contest.table()[0].pairs < 100:
        serve(contest, {"a": 100.0, "b": 100.0}, 1)

    before = contest.candidates
    shares = Counter(serve(contest, {"a": 100.0, "b": 100.0}, 1000))

    assert before == contest.candidates
    assert shares[contest.candidates[1]] <= share * 1000 + BLOCK


def test_no_challenger_is_chosen_that_could_miss_the_deadline() -> None:
    contest = Contest("ab", estimates_us=[100.0, 100.0])
    serve(contest, {"a": 100.0, "b": 150.0}, 20)
    in_time = {"a": 100.0, "b": 100.0}

    assert contest.incumbent == "a"
    assert set(serve(contest, in_time, 300, slack_us=140.0)) == {"a"}
    assert "b" in serve(contest, in_time, 3000, slack_us=1000.0)


def test_requests_with_short_deadlines_use_up_no_budget() -> None:
    contest = Contest("ab", estimates_us=[100.0, 110.0])
    equal = {"a": 100.0, "b": 110.0}

    serve(contest, equal, 500, slack_us=105.0)

    assert "b" in serve(contest, equal, 2 * BLOCK)


def test_of_an_unknown_challenger_every_deadline_could_be_missed() -> None:
    assert set(serve(Contest("ab"), {"a": 1.0}, 50, slack_us=1e9)) == {"a"}


def test_a_full_queue_gives_up_the_block_and_the_pair_counts_for_nothing() -> None:
    contest = Contest("ab")
    name = ""
    while name != "b":
        name = contest.next()
        contest.took(name, 100.0)

    after = contest.next(may_explore=False)

    assert after == "a"
    assert not contest.is_in_pair
    assert sum(row.pairs for row in contest.table()) == 0


def test_a_request_gives_up_a_pair_of_idle_time() -> None:
    contest = Contest("ab", estimates_us=[100.0, 200.0])
    contest.next(free=True)

    assert contest.is_in_pair
    assert contest.next() == "a"
    assert not contest.is_in_pair


def test_a_pair_of_idle_time_ends_with_the_incumbent() -> None:
    for seed in range(10):
        contest = Contest("ab", seed=seed)
        chosen = serve(contest, {"a": 100.0, "b": 120.0}, 1, free=True)
        while contest.is_in_pair:
            chosen += serve(contest, {"a": 100.0, "b": 120.0}, 1, free=True)

        assert chosen[-1] == contest.incumbent == "a"
        assert Counter(chosen) == {"a": 2 * BLOCK, "b": BLOCK}


def test_the_first_run_of_a_block_is_not_counted() -> None:
    contest = Contest("ab")
    runs: Counter[str] = Counter()
    while contest.table()[1].pairs == 0:
        name = contest.next(free=True)
        runs[name] += 1
        contest.took(name, 9000.0 if runs[name] == 1 else {"a": 100.0, "b": 150.0}[name])

    assert contest.table()[1].ratio == pytest.approx(1.5)


def test_batches_may_be_under_way_at_once() -> None:
    contest, waiting = Contest("ab", estimates_us=[100.0, 90.0]), []
    for _ in range(600):
        waiting.append(contest.next())
        if len(waiting) == 3:
            name = waiting.pop(0)
            contest.took(name, {"a": 100.0, "b": 120.0}[name])

    assert contest.incumbent == "a"


def test_a_pair_whose_times_never_come_ends() -> None:
    contest = Contest("ab")
    for _ in range(100):
        contest.next(free=True)

    serve(contest, {"a": 100.0, "b": 101.0}, 300, free=True)

    assert contest.table()[1].pairs > 0


def test_a_candidate_that_leaves_is_chosen_no_more() -> None:
    contest = Contest("abc", estimates_us=[100.0, 101.0, 102.0])
    serve(contest, {"a": 100.0, "b": 101.0, "c": 102.0}, 5)

    contest.drop(contest.incumbent)
    contest.took("a", 100.0)  # was under way

    assert contest.incumbent == "b"
    assert "a" not in serve(contest, {"b": 101.0, "c": 102.0}, 300)
    contest.drop("c")
    assert contest.is_decided
    with pytest.raises(ValueError, match="b is the last candidate"):
        contest.drop("b")


def test_a_lasting_change_of_the_incumbents_latency_reopens() -> None:
    contest, times = Contest("ab", estimates_us=[100.0, 130.0]), every(0.05)
    serve(contest, {"a": 100.0, "b": 130.0}, 5000, times=times)
    was_decided, had_left = contest.is_decided, contest.left_interval

    serve(contest, {"a": 140.0}, int(LEFT_S / 0.05 / 2), times=times)
    after_half_a_minute = contest.left_interval
    serve(contest, {"a": 140.0}, int(LEFT_S / 0.05), times=times)
    after_more = contest.left_interval
    contest.reopen("ab")
    serve(contest, {"a": 140.0, "b": 130.0}, 600)

    assert was_decided
    assert (had_left, after_half_a_minute, after_more) == (False, False, True)
    assert contest.incumbent == "b"
    assert not contest.left_interval


def test_a_short_change_of_latency_does_not() -> None:
    contest, times = Contest("ab", estimates_us=[100.0, 130.0]), every(0.05)
    serve(contest, {"a": 100.0, "b": 130.0}, 5000, times=times)

    for _ in range(5):
        serve(contest, {"a": 300.0}, 600, times=times)
        assert not contest.left_interval
        serve(contest, {"a": 100.0}, 600, times=times)


def test_the_table_shows_pairs_and_ratios() -> None:
    contest = Contest("ab")
    serve(contest, {"a": 100.0, "b": 120.0}, 400)

    first, second = contest.table()

    assert (first.name, first.ratio, first.latency_us) == ("a", 1.0, 100.0)
    assert second.ratio == pytest.approx(1.2)
    assert second.low is not None is not second.high
    assert second.low < 1.2 < second.high
    assert second.pairs == first.pairs > 0


def test_what_cannot_be_a_contest_is_refused() -> None:
    for candidates in ("", "aa", "abcd"):
        with pytest.raises(ValueError, match="one to 3 different candidates"):
            Contest(candidates)
    with pytest.raises(ValueError, match="1 estimates for 2 candidates"):
        Contest("ab", estimates_us=[1.0])
    with pytest.raises(ValueError, match="choose more than 0"):
        Contest("ab", loser_share=0.9)
    with pytest.raises(ImpossibleLatency):
        Contest("ab", estimates_us=[1.0, 0.0])
    with pytest.raises(ImpossibleLatency):
        Contest("ab").took("a", float("nan"))
