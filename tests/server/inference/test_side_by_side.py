"""Batches side by side on parts of a device: when they run so, and that every request ends once."""

import asyncio

import pytest

from braid.core.inputs import ShapeClass
from braid.core.tensor import TensorType
from tests.server.inference.batching import ROW, Bench, FakeModel

MS = 0.001
ALONE = {1: 40 * MS, 8: 300 * MS}
BESIDE = {1: 60 * MS}
"""Two at once: 33 rows a second, instead of 25."""


async def finished(bench: Bench, *tasks: asyncio.Task[list[int]]) -> list[list[int]]:
    while not all(task.done() for task in tasks):
        await bench.clock.advance(10 * MS)
    return [task.result() for task in tasks]


def seen(bench: Bench) -> list[tuple[int, int]]:
    """Size of each batch, and how many ran at once."""
    return [(batch.size, batch.beside) for batch in bench.device.batches]


async def test_a_lone_request_runs_on_all_threads() -> None:
    bench = Bench(ALONE, beside_s=BESIDE)

    assert await finished(bench, bench.send()) == [[0]]
    await bench.clock.advance(1.0)
    assert await finished(bench, bench.send()) == [[1]]

    assert seen(bench) == [(1, 1), (1, 1)]


async def test_a_lone_request_of_many_rows_runs_on_all_threads() -> None:
    bench = Bench({1: 40 * MS, 4: 150 * MS}, beside_s={1: 50 * MS, 4: 210 * MS})

    assert await finished(bench, bench.send(rows=4)) == [[0, 1, 2, 3]]

    assert seen(bench) == [(4, 1)]


async def test_four_callers_that_never_pause_keep_both_parts_busy() -> None:
    bench = Bench(ALONE, beside_s=BESIDE)

    async def caller() -> None:
        while bench.clock.now() < 6.0:
            await bench.send()
            await bench.clock.sleep(8 * MS)  # answer and next request travel

    callers = [asyncio.create_task(caller()) for _ in range(4)]
    while not all(task.done() for task in callers):
        await bench.clock.advance(10 * MS)

    beside = [batch.beside > 1 for batch in bench.device.batches]
    assert sum(beside) > 0.95 * len(beside)
    assert len(beside) / 6.0 > 0.95 * 2 / BESIDE[1]


SHAPES = [ShapeClass((("x", TensorType("INT32", (1, n))),)) for n in range(1, 8)]


@pytest.mark.parametrize("shapes", [[ROW] * 7, SHAPES], ids=["one shape", "different shapes"])
async def test_many_that_wait_run_side_by_side(shapes: list[ShapeClass]) -> None:
    bench = Bench(ALONE, beside_s=BESIDE)
    tasks = [bench.send(shape_class=shape_class) for shape_class in shapes]

    assert await finished(bench, *tasks) == [[row] for row in range(7)]

    ran = bench.device.batches
    assert seen(bench)[:5] == [(1, 1), *[(1, 2)] * 4]
    assert ran[1].began == ran[2].began, "at once"
    assert ran[3].began == ran[4].began == ran[1].began + BESIDE[1]


async def test_the_next_batch_is_sent_early_where_batches_end_early() -> None:
    bench, was_sent = Bench(ALONE), []
    for _ in range(20):
        bench.model.latencies(ROW).expect(1, 80 * MS)
        tasks = [bench.send(), bench.send()]
        await bench.clock.advance(39 * MS)
        was_sent.append(bench.watcher.waiting == (0, 0))
        await finished(bench, *tasks)
        await bench.clock.advance(1.0)

    assert (was_sent[0], was_sent[-1]) == (False, True)


async def test_a_part_that_is_free_is_used_while_another_model_holds_the_other_part() -> None:
    bench = Bench(ALONE, beside_s=BESIDE)
    quick = FakeModel({1: 40 * MS}, beside_s={1: 41 * MS})
    tasks = [bench.send(), bench.send(model=quick), bench.send(model=quick), bench.send()]
    tasks += [bench.send(), bench.send(model=quick), bench.send(model=quick)]

    await finished(bench, *tasks)

    ran = bench.device.batches
    beside = [batch for batch in ran if batch.beside > 1]
    assert len({batch.began for batch in beside}) > len(beside) / 2, "not in pairs only"
    assert sorted(row for batch in ran for row in batch.rows) == list(range(7))


async def test_a_model_that_needs_all_threads_gets_its_share_beside_one_that_does_not() -> None:
    bench = Bench(ALONE, beside_s=BESIDE)
    whole = FakeModel({1: 40 * MS})

    async def caller(model: FakeModel) -> None:
        while bench.clock.now() < 8.0:
            await bench.send(model=model)

    callers = [asyncio.create_task(caller(model)) for model in [bench.model] * 8 + [whole] * 8]
    while not all(task.done() for task in callers):
        await bench.clock.advance(10 * MS)

    used_s = dict.fromkeys((bench.model, whole), 0.0)
    for batch in bench.device.batches:
        took_s = ALONE[1] if batch.beside == 1 else BESIDE[1] / 2
        used_s[batch.model] += took_s
    assert used_s[bench.model] == pytest.approx(used_s[whole], rel=0.2)
