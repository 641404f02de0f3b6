import pytest

from braid.core.errors import (
    BraidError,
    ModelQuarantined,
    RunStopped,
    RunTooLong,
    WorkerDied,
    WorkerRestarting,
)
from braid.server.inference.batching.device_time import IN_FLIGHT
from braid.server.inference.strikes import REFUSED_S, STRIKES, WITHIN_S, Strikes
from braid.server.store.serving_config import BatchPolicy
from tests.clock import SetClock
from tests.server.inference.batching import Bench, FakeModel


def test_a_version_is_refused_for_a_while_after_three_strikes() -> None:
    clock = SetClock()
    strikes = Strikes(clock)
    assert [strikes.add() for _ in range(STRIKES)] == [False, False, True]

    clock.now = REFUSED_S - 100
    with pytest.raises(ModelQuarantined, match=r"version 1 of 'm' .* refused for 100 s more"):
        strikes.check("m", 1)

    clock.now = REFUSED_S
    strikes.check("m", 1)
    assert strikes.add() is False, "counted anew"


def test_strikes_that_lie_far_apart_do_not_add_up() -> None:
    clock = SetClock()
    strikes = Strikes(clock)
    for _ in range(2 * STRIKES):
        clock.now += WITHIN_S / (STRIKES - 1) + 1
        assert not strikes.add()


@pytest.mark.parametrize(
    ("error", "is_strike"),
    [
        (RunTooLong("it was ended after 20 s"), True),
        (WorkerDied("the device worker died", is_of_run=True), True),
        (WorkerDied("it was killed, or another run ended it", is_of_run=False), False),
        (RunStopped("nobody waited for this run any more"), False),
    ],
)
async def test_runs_that_cost_the_worker_end_in_quarantine_and_other_models_are_served(
    error: BraidError, is_strike: bool
) -> None:
    runs = STRIKES if is_strike else 2 * STRIKES
    bench = Bench({1: 0.01})
    other = FakeModel({1: 0.01})
    other.name = "other"
    bench.device.is_bad = lambda row: row < runs
    bench.device.error = error
    for _ in range(runs):
        sent = bench.send()
        await bench.clock.advance(1.0)
        assert isinstance(sent.exception(), type(error))

    if is_strike:
        with pytest.raises(ModelQuarantined):
            await bench.send()
    for model in [other] if is_strike else [other, bench.model]:
        fine = bench.send(model=model)
        await bench.clock.advance(1.0)
        assert len(await fine) == 1


async def test_a_request_that_rode_with_others_is_one_strike() -> None:
    bench = Bench({1: 0.01, 4: 0.01}, BatchPolicy(max_wait_s=0.1))
    bench.device.is_bad = lambda row: row % 4 == 0
    bench.device.error = RunTooLong("it was ended after 20 s")
    for strikes in range(STRIKES):
        sent = [bench.send() for _ in range(4)]
        await bench.clock.advance(1.0)
        assert isinstance(sent[0].exception(), RunTooLong)
        if strikes < STRIKES - 1:
            assert [await each for each in sent[1:]] == [[4 * strikes + i] for i in (1, 2, 3)]
    for neighbour in sent[1:]:
        with pytest.raises(ModelQuarantined):
            await neighbour


async def test_a_batch_that_costs_the_worker_is_a_strike_though_nothing_can_be_run_alone() -> None:
    bench = Bench({1: 0.01, 4: 0.01}, BatchPolicy(max_wait_s=0.1))

    def ends_with_the_worker(row: int) -> bool:
        together = len(bench.device.batches[-1].rows) > 1
        bench.device.error = RunTooLong("hung") if together else WorkerRestarting("try again")
        return True

    bench.device.is_bad = ends_with_the_worker
    for _ in range(STRIKES):
        sent = [bench.send() for _ in range(4)]
        await bench.clock.advance(1.0)
        assert all(isinstance(each.exception(), WorkerRestarting) for each in sent)

    with pytest.raises(ModelQuarantined):
        await bench.send()


async def test_requests_that_wait_when_their_version_is_quarantined_are_refused() -> None:
    bench = Bench({1: 0.01})
    bench.device.is_bad = lambda row: True
    bench.device.error = RunTooLong("it was ended after 20 s")
    sent = [bench.send() for _ in range(5 * STRIKES)]
    await bench.clock.advance(1.0)

    ran = STRIKES + IN_FLIGHT - 1  # the device had the last one already
    ended = [type(each.exception()) for each in sent]
    assert ended == [RunTooLong] * ran + [ModelQuarantined] * (len(sent) - ran)
    assert len(bench.device.batches) == ran
    await bench.batcher.drain()
