"""When the batcher runs what, by a clock that only the tests move."""

import asyncio
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.core.errors import DeadlineExceeded, InvalidRequest, QueueFull
from braid.server.inference.batching.batch_sizes import CompletionPlan
from braid.server.inference.latencies import LatencyTable
from braid.server.store.serving_config import BatchPolicy
from tests.core.test_cover import LATENCIES, cheapest
from tests.server.inference.batching import Bench, FakeModel, settle

MS = 1e-3
CHEAP = {1: 10 * MS, 4: 12 * MS, 8: 14 * MS}  # batches hardly cost more than a row
NEVER_WAIT = BatchPolicy(max_wait_s=0)


@settings(max_examples=60, deadline=None)
@given(
    latencies=st.dictionaries(st.integers(1, 9), st.integers(1, 50), min_size=1, max_size=4),
    rows=st.integers(1, 12),
)
def test_batch_sizes_end_the_waiting_as_soon_as_any_order_could(
    latencies: dict[int, int], rows: int
) -> None:
    @cache
    def least(n: int) -> float:  # by trying every sequence of batches
        if n <= 0:
            return 0.0
        return min(seconds * n + least(n - size) for size, seconds in latencies.items())

    table = LatencyTable(list(latencies))
    for size, seconds in latencies.items():
        table.expect(size, seconds)
    plan = CompletionPlan(table)

    total, left = 0.0, rows
    while left > 0:
        size = plan.best_way(left).size
        total += latencies[size] * left
        left -= size

    assert total == pytest.approx(least(rows))


async def test_what_arrives_while_the_device_is_busy_rides_in_the_next_batch() -> None:
    bench = Bench({1: 10 * MS, 8: 14 * MS})
    bench.send()
    for _ in range(5):
        await bench.clock.advance(1.4 * MS)
        bench.send()

    await bench.clock.advance(1.0)

    assert bench.rows == [(0,), (1, 2, 3, 4, 5)]
    assert bench.device.batches[1].began == pytest.approx(10 * MS)  # without a gap


async def test_waits_for_more_rows_where_they_come_soon_enough_to_pay() -> None:
    """Rows every ms, a batch of 8 hardly dearer than one row: waiting beats running singles."""
    bench = Bench({1: 30 * MS, 8: 31 * MS}, BatchPolicy(max_wait_s=20 * MS))
    for _ in range(60):
        bench.send()
        await bench.clock.advance(1 * MS)
    await bench.clock.advance(1.0)
    before = len(bench.rows)
    for _ in range(8):
        bench.send()
        await bench.clock.advance(1 * MS)

    await bench.clock.advance(1.0)

    assert [len(rows) for rows in bench.rows[before:]] == [8]


async def test_never_waits_longer_than_the_policy_allows() -> None:
    bench = Bench({1: 30 * MS, 8: 31 * MS}, BatchPolicy(max_wait_s=3 * MS))
    for _ in range(20):
        bench.send()
        await bench.clock.advance(0.5 * MS)
    await bench.clock.advance(1.0)
    before, now = len(bench.rows), bench.clock.now()
    bench.send()

    await bench.clock.advance(1.0)

    assert bench.device.batches[before].began <= now + 3 * MS + 1e-9


async def test_does_not_wait_where_rows_are_rare() -> None:
    bench = Bench(CHEAP, BatchPolicy(max_wait_s=1.0))
    for _ in range(10):
        task = bench.send()
        sent_at = bench.clock.now()
        await bench.clock.advance(0.1)
        assert task.done()
        assert bench.device.batches[-1].began == sent_at


async def test_urgent_requests_overtake() -> None:
    bench = Bench({1: 10 * MS}, NEVER_WAIT)
    for priority in (5, 5, 5, 1, 9, 1):
        bench.send(priority=priority)
        await settle()

    await bench.clock.advance(1.0)

    assert [row for (row,) in bench.rows[:2]] == [0, 1]  # sent before the urgent ones came
    assert [row for (row,) in bench.rows[2:]] == [3, 5, 2, 4]


async def test_an_expired_request_leaves_at_its_deadline() -> None:
    bench = Bench({1: 10 * MS, 4: 10 * MS}, NEVER_WAIT)
    bench.send()
    await settle()
    late = bench.send(within=11 * MS)
    await settle()
    assert bench.watcher.waiting == (1, 1)

    await bench.clock.advance(11 * MS)

    assert isinstance(late.exception(), DeadlineExceeded)
    assert bench.watcher.waiting == (0, 0)


async def test_a_cancelled_request_leaves_at_once_and_frees_its_place() -> None:
    bench = Bench(CHEAP, BatchPolicy(max_requests=1))
    bench.send()
    await settle()
    gone = bench.send()
    await settle()
    with pytest.raises(QueueFull):
        await bench.send()
    gone.cancel()
    await settle()

    kept = bench.send()
    await bench.clock.advance(1.0)

    assert await kept == [3]
    assert (1,) not in bench.rows


async def test_refuses_at_once_what_could_only_be_late() -> None:
    bench = Bench({1: 10 * MS}, NEVER_WAIT)
    for _ in range(10):
        bench.send()
    await settle()

    with pytest.raises(QueueFull) as refused:
        await bench.send(within=50 * MS)
    in_time = bench.send(within=150 * MS)
    await bench.clock.advance(0.2)

    assert await in_time == [11]
    assert refused.value.retry_after_s == pytest.approx(0.1, rel=0.3)


async def test_an_urgent_request_is_not_refused_for_what_it_overtakes() -> None:
    bench = Bench({1: 10 * MS}, NEVER_WAIT)
    for _ in range(10):
        bench.send(priority=5)
    await settle()

    urgent = bench.send(priority=1, within=40 * MS)
    await bench.clock.advance(40 * MS)

    assert await urgent == [10]


async def test_the_retry_hint_follows_from_the_latencies() -> None:
    hints = []
    for latency in (10 * MS, 100 * MS):
        bench = Bench({1: latency}, BatchPolicy(max_wait_s=0, max_rows=5))
        for _ in range(7):
            bench.send()
        await settle()
        with pytest.raises(QueueFull) as refused:
            await bench.send(3)
        hints.append(refused.value.retry_after_s)
        await bench.clock.advance(10)

    assert hints == [pytest.approx(5 * 10 * MS), pytest.approx(5 * 100 * MS)]  # 2 run, 3 rows


async def test_a_request_is_cut_to_fill_up_the_batch_of_another() -> None:
    bench = Bench({1: 10 * MS, 4: 11 * MS}, NEVER_WAIT)
    tasks = [bench.send(rows) for rows in (1, 3, 3, 3)]

    await bench.clock.advance(1.0)

    assert bench.rows == [(0,), (1, 2, 3, 4), (5, 6, 7, 8), (9,)]
    assert [task.result() for task in tasks] == [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9]]


@settings(max_examples=60, deadline=None)
@given(latencies=LATENCIES, rows=st.integers(1, 16))
def test_the_rows_of_a_lone_request_run_in_the_cheapest_batches(
    latencies: dict[int, int], rows: int
) -> None:
    async def took() -> float:
        bench = Bench({size: ms * MS for size, ms in latencies.items()}, NEVER_WAIT)
        task = bench.send(rows)
        while not task.done():
            await bench.clock.advance(MS)
        assert task.result() == list(range(rows))
        return bench.clock.now()

    assert asyncio.run(took()) == pytest.approx(cheapest(latencies, rows) * MS, abs=MS / 2)


@pytest.mark.parametrize("others", [0, 1, 5])
async def test_a_request_of_two_rows_is_not_padded_to_a_batch_that_takes_longer(
    others: int,
) -> None:
    bench = Bench({1: 13 * MS, 8: 56 * MS}, NEVER_WAIT)
    for _ in range(others):  # callers that wait for their answers: their rate says nothing
        await asyncio.gather(bench.send(2), bench.clock.advance(30 * MS))
    began = len(bench.sizes)

    await asyncio.gather(bench.send(2), bench.clock.advance(30 * MS))

    assert bench.sizes[began:] == [1, 1]


async def test_what_batches_take_beside_their_computing_counts_when_rows_are_cut() -> None:
    bench = Bench({1: 1 * MS, 8: 9 * MS}, NEVER_WAIT)
    bench.device.handover_s = 2 * MS
    await asyncio.gather(bench.send(), bench.clock.advance(30 * MS))

    await asyncio.gather(bench.send(4), bench.clock.advance(30 * MS))  # 11 ms, cut 12
    await asyncio.gather(bench.send(3), bench.clock.advance(30 * MS))  # 11 ms, cut 9

    assert bench.sizes == [1, 8, 1, 1, 1]


async def test_requests_of_several_rows_wait_for_their_last_row() -> None:
    """One row after the other, the first request would end after 40 ms, the second after 80."""
    bench = Bench({1: 10 * MS, 8: 56 * MS}, NEVER_WAIT)
    bench.send()
    tasks = [bench.send(4), bench.send(4)]

    await bench.clock.advance(1.0)

    assert bench.sizes == [1, 8]
    assert [task.result() for task in tasks] == [[1, 2, 3, 4], [5, 6, 7, 8]]


async def test_models_share_the_device_by_time_not_by_turns() -> None:
    """One model's batches take ten times as long; it gets a tenth of the turns, not half."""
    bench = Bench({1: 1 * MS}, NEVER_WAIT)
    slow = FakeModel({1: 10 * MS}, NEVER_WAIT)
    for _ in range(300):
        bench.send()
        bench.send(model=slow)
    await bench.clock.advance(0.2)

    spent = {
        model: sum(after.began - at.began for at, after in pairwise(bench.device.batches)
                   if at.model is model)
        for model in (bench.model, slow)
    }  # fmt: skip

    assert spent[bench.model] == pytest.approx(spent[slow], abs=0.025)


async def test_a_share_of_three_gets_three_times_the_device() -> None:
    bench = Bench({1: 5 * MS}, BatchPolicy(max_wait_s=0, share=3))
    other = FakeModel({1: 5 * MS}, NEVER_WAIT)
    for _ in range(200):
        bench.send()
        bench.send(model=other)
    await bench.clock.advance(0.4)

    ran = [batch.model is bench.model for batch in bench.device.batches]

    assert sum(ran) == pytest.approx(0.75 * len(ran), abs=3)


async def test_a_model_that_slept_does_not_get_the_device_for_all_it_missed() -> None:
    bench = Bench({1: 5 * MS}, NEVER_WAIT)
    other = FakeModel({1: 5 * MS}, NEVER_WAIT)
    for _ in range(100):
        bench.send()
    await bench.clock.advance(0.25)
    for _ in range(50):
        bench.send(model=other)
    before = len(bench.device.batches)
    await bench.clock.advance(0.2)

    ran = [batch.model is other for batch in bench.device.batches[before:]]

    assert sum(ran) == pytest.approx(len(ran) / 2, abs=3)


def test_a_slower_device_does_not_make_sizes_look_fast_that_have_not_run() -> None:
    table = LatencyTable((1, 8))
    table.expect(1, 10 * MS)
    table.expect(8, 72 * MS)  # 10 % less a row
    for _ in range(20):
        table.observe(1, 15 * MS)

    assert table.seconds(1) == pytest.approx(15 * MS, rel=0.1)
    assert table.seconds(8) > 82 * MS


async def test_a_size_that_a_slow_moment_made_look_dear_is_tried_again() -> None:
    true_s = {1: 1.4 * MS, 4: 5 * MS}
    bench = Bench(true_s, NEVER_WAIT)
    for _ in range(20):
        bench.model._table.observe(1, 8 * MS)  # beside the start of other processes
    bench.model._table.expect(4, true_s[4])
    for _ in range(200):
        bench.send()
        await bench.clock.advance(0.1)

    assert set(bench.sizes[:50]) == {4}, "believed"
    assert set(bench.sizes[-20:]) == {1}, "known again"


async def test_a_size_that_is_dear_costs_one_batch_each_time_it_is_tried_again() -> None:
    bench = Bench({1: 10 * MS, 4: 12 * MS}, NEVER_WAIT)
    bench.model.latencies_s = {1: 10 * MS, 4: 100 * MS}  # the schedule was too good to be true
    for _ in range(400):
        for _ in range(4):
            bench.send()
        await bench.clock.advance(1.0)

    assert bench.sizes[200:].count(4) <= 0.02 * len(bench.sizes[200:])


@pytest.mark.parametrize("beside", [1, 2])
def test_rows_that_are_still_to_come_fill_no_batch(beside: int) -> None:
    table = LatencyTable(list(CHEAP))
    for size, seconds in CHEAP.items():
        table.expect(size, seconds, beside)
    plan = CompletionPlan(table)

    assert plan.best_way(1, gap_s=1 * MS).size == 1
    assert plan.best_way(1, gap_s=1 * MS, free_s=[0.0, 1 * MS]).size == 1


async def test_a_size_that_was_never_seen_is_tried() -> None:
    bench = Bench({1: 10 * MS, 8: 20 * MS}, NEVER_WAIT)
    bench.model._table = LatencyTable((1, 8))
    bench.model._table.expect(1, 10 * MS)
    for _ in range(9):
        bench.send()

    await bench.clock.advance(1.0)

    assert bench.sizes == [1, 8]


@pytest.mark.parametrize("wrong", [{"max_wait_s": -1}, {"share": 0}, {"max_requests": 0}])
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        BatchPolicy(**wrong)  # type: ignore[arg-type]


async def test_what_would_wait_too_long_is_refused_with_a_hint_when_it_would_not() -> None:
    bench = Bench({1: 10 * MS}, BatchPolicy(max_wait_s=0, max_queue_s=35 * MS))
    accepted = [bench.send() for _ in range(4)]
    await settle()

    refused = bench.send()
    await settle()
    error = refused.exception()
    await bench.clock.advance(10 * MS)
    accepted.append(bench.send())
    await bench.clock.advance(1.0)

    assert isinstance(error, QueueFull)
    assert error.retry_after_s == pytest.approx(5 * MS)  # it would have waited 40 ms
    assert [len(task.result()) for task in accepted] == [1] * 5


async def test_a_full_model_is_known_before_a_request_is_read() -> None:
    bench = Bench(CHEAP, BatchPolicy(max_requests=1))
    assert bench.batcher.refusal(bench.model) is None  # type: ignore[arg-type]
    sent = [bench.send(8), bench.send(8), bench.send()]
    await settle()

    full = bench.batcher.refusal(bench.model)  # type: ignore[arg-type]
    await bench.clock.advance(1.0)

    assert isinstance(full, QueueFull)
    assert full.retry_after_s
    assert all(task.done() for task in sent)
    assert bench.batcher.refusal(bench.model) is None  # type: ignore[arg-type]
