import pytest

from braid.core.errors import ModelQuarantined, RunStopped, RunTooLong, WorkerDied, WorkerRestarting
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


async def test_runs_that_take_too_long_end_in_quarantine_and_other_models_are_served() -> None:
    bench = Bench({1: 0.01})
    other = FakeModel({1: 0.01})
    other.name = "other"
    bench.device.is_bad = lambda row: row < STRIKES
    bench.device.error = RunTooLong("it was ended after 20 s")
    for _ in range(STRIKES):
        sent = bench.send()
        await bench.clock.advance(1.0)
        assert isinstance(sent.exception(), RunTooLong)

    with pytest.raises(ModelQuarantined):
        await bench.send()
    fine = bench.send(model=other)
    await bench.clock.advance(1.0)
    assert await fine == [STRIKES + 1]


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


@pytest.mark.parametrize("is_of_run", [True, False])
async def test_runs_that_crash_the_worker_end_in_quarantine(is_of_run: bool) -> None:
    bench = Bench({1: 0.01})
    bench.device.is_bad = lambda row: row < STRIKES
    bench.device.error = WorkerDied("the device worker died", is_of_run=is_of_run)
    for _ in range(STRIKES):
        sent = bench.send()
        await bench.clock.advance(1.0)
        assert isinstance(sent.exception(), WorkerDied)

    if is_of_run:
        with pytest.raises(ModelQuarantined):
            await bench.send()
    else:  # it was killed, or another run ended it
        fine = bench.send()
        await bench.clock.advance(1.0)
        assert await fine == [STRIKES]


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


async def test_runs_that_were_ended_for_their_callers_are_no_strikes() -> None:
    bench = Bench({1: 0.01})
    bench.device.is_bad = lambda row: row < 2 * STRIKES
    bench.device.error = RunStopped("nobody waited for this run any more")
    for _ in range(2 * STRIKES):
        stopped = bench.send()
        await bench.clock.advance(1.0)
        with pytest.raises(RunStopped):
            await stopped

    fine = bench.send()
    await bench.clock.advance(1.0)
    assert await fine == [2 * STRIKES]
