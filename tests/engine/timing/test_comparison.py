"""Whole models against each other; contenders that say what they take instead of taking it."""

import socket
import threading
import time
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import pytest

from braid.core.errors import PreconditionFailed, WorkerFault
from braid.core.measurement import PlanMeasurement
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.yielding import NetTime, YieldToRequests
from braid.engine.timing.comparison import Check, ComparisonOptions, compare
from braid.engine.timing.contenders import TimedContender, TimedRun, timed, timed_aside
from braid.engine.timing.rounds import LEAST_ROUNDS, RoundOptions
from braid.engine.timing.samples import ATTEMPTS, uninterrupted
from tests.engine.timing.running import finish

REFERENCE = {"y": np.array([1.0, -2.0], np.float32)}
ROUNDS = RoundOptions(6, turn_s=0.02, most_turn_s=600.0, pause_s=0.0)
OPTIONS = ComparisonOptions(tolerance=1e-4, rounds=ROUNDS)


@dataclass
class Machine:
    """Remembers who ran last, and how often in a row: the caches are theirs."""

    ran: list["Scripted"] = field(default_factory=list)

    def times_in_a_row(self, plan: "Scripted") -> int:
        return next((n for n, other in enumerate(reversed(self.ran)) if other is not plan), 99)


class Scripted:
    """Takes ``ms``, in the first runs after those of others ``cold_ms``; off by ``error``."""

    def __init__(
        self,
        ms: float,
        *cold_ms: float,
        error: float = 0.0,
        on: Machine | None = None,
        is_runtime: bool = False,
    ) -> None:
        self.ms, self.cold_ms, self.error = ms, cold_ms, error
        self.machine, self.is_runtime = on or Machine(), is_runtime

    @property
    def runs(self) -> int:
        return self.machine.ran.count(self)

    def __call__(self, _: Arrays, __: YieldToRequests) -> TimedRun:
        warm = self.machine.times_in_a_row(self)
        ms = self.cold_ms[warm] if warm < len(self.cold_ms) else self.ms
        self.machine.ran.append(self)
        return TimedRun({"y": REFERENCE["y"] * (1 + self.error)}, ms * 1e3)


def held(*plans: Scripted, options: ComparisonOptions = OPTIONS) -> list[PlanMeasurement]:
    results, _ = finish(
        compare(
            [TimedContender(plan, is_runtime=plan.is_runtime) for plan in plans],
            [Check({}, REFERENCE)],
            options,
        )
    )
    return results


def test_the_clearly_slower_leave_early_and_the_baseline_stays() -> None:
    slow, fast, slowest = Scripted(8), Scripted(4), Scripted(30)

    baseline, faster, slower = held(slow, fast, slowest)

    # up to 5 runs a turn: 20 ms of the fastest one's
    assert (baseline.runs, faster.runs, slower.runs) == (17, 17, 1 + 2)
    assert (faster.latency_us, faster.ratios) == (4000, (2.0,) * 6)
    assert (slower.latency_us, slower.ratios, slower.turns_us) == (30_000, (8 / 30,) * 2, ())
    assert baseline.turns_us == (8000,) * 6


def test_without_rounds_each_runs_once_for_its_error() -> None:
    no_rounds = replace(OPTIONS, rounds=RoundOptions(0))
    plans = [Scripted(8, error=1e-5), Scripted(4, error=2e-5)]

    results = held(*plans, options=no_rounds)

    assert [plan.runs for plan in plans] == [1, 1]
    assert [result.latency_us for result in results] == [None, None]
    assert [result.max_rel_error for result in results] == pytest.approx([1e-5, 2e-5], rel=0.02)


def test_those_that_take_long_run_once_a_turn() -> None:
    slow, fast = Scripted(2000), Scripted(1999)

    baseline, faster = held(slow, fast)

    assert slow.runs == fast.runs == 1 + 6 + 1  # the first one shows that it takes long
    assert baseline.turns_us == (2_000_000,) * 6
    assert list(faster.ratios) == pytest.approx([2000 / 1999] * 6)


def test_runs_that_follow_on_each_other_show_who_is_faster() -> None:
    machine = Machine()
    steady = Scripted(7.3, on=machine)
    # The first two of its runs in a row are slower than the other plan, those that follow are not.
    gains = Scripted(7.0, 9.0, 9.0, on=machine)
    options = replace(OPTIONS, rounds=replace(ROUNDS, turn_s=0.04))

    baseline, warm = held(steady, gains, options=options)

    assert (median(baseline.turns_us), median(warm.turns_us)) == (7300, 7000)
    assert baseline.runs == warm.runs == 1 + 2 + 3 + 4 + 5 + 6


class Wandering(Scripted):
    """Takes the next of ``turns_ms`` in each of its turns of three runs, the last one from then."""

    def __init__(self, *turns_ms: float, on: Machine) -> None:
        super().__init__(turns_ms[-1], on=on)
        self.turns_ms = turns_ms

    def __call__(self, inputs: Arrays, pause: YieldToRequests) -> TimedRun:
        turn = max(0, self.runs - 1) // 3  # the first run finds errors
        self.ms = self.turns_ms[min(turn, len(self.turns_ms) - 1)]
        return super().__call__(inputs, pause)


def test_who_took_much_longer_in_some_turns_only_stays() -> None:
    machine = Machine()
    steady = Scripted(10.0, on=machine)
    hopeless = Wandering(18.0, 18.0, 9.8, on=machine)
    # Slower by a third in most turns, as on a host that moves cores, and yet as fast in some.
    unlucky = Wandering(13.0, 13.0, 10.0, 13.0, 9.9, 9.8, on=machine)
    options = replace(OPTIONS, rounds=replace(ROUNDS, min_runs=2))

    baseline, gone, other = held(steady, hopeless, unlucky, options=options)

    assert len(gone.ratios) == LEAST_ROUNDS
    assert len(other.ratios) == len(baseline.ratios) == 6


def test_rounds_take_the_opposite_order_each_time() -> None:
    machine = Machine()
    plans = [Scripted(9, on=machine), Scripted(8.9, on=machine)]
    held(*plans, options=replace(OPTIONS, rounds=replace(ROUNDS, min_runs=2)))

    # Each turn: one run that does not count, then two.
    last = machine.ran[-6 * 2 * 3 :]
    first_of_bursts = [plans.index(last[at]) for at in range(0, len(last), 3)]
    assert first_of_bursts == [0, 1, 1, 0] * 3


def test_a_turn_in_which_every_run_is_interrupted_ends_after_its_least_runs() -> None:
    def interrupted(_: Arrays, __: YieldToRequests) -> TimedRun:
        return TimedRun(REFERENCE, 100.0, was_interrupted=True)

    one, other = TimedContender(interrupted), TimedContender(interrupted)
    rounds = RoundOptions(5, most_turn_s=0.0, pause_s=0.0)

    finish(compare([one, other], [Check({}, REFERENCE)], replace(OPTIONS, rounds=rounds)))

    assert [len(turn) for turn in one.turns_us] == [rounds.min_runs] * 5


def test_all_that_are_nearly_as_fast_stay_to_the_end() -> None:
    field_ = [Scripted(10.0), *(Scripted(9.9 - n / 1000) for n in range(6))]

    results = held(*field_)

    assert [len(result.turns_us) for result in results] == [6] * 7


def test_the_fastest_of_many_go_on_after_two_rounds_and_the_baseline() -> None:
    options = replace(OPTIONS, rounds=replace(ROUNDS, most_stay=3))
    field_ = [Scripted(10.5), *(Scripted(10 - n / 10) for n in range(6))]

    results = held(*field_, options=options)

    turns = [len(result.ratios) for result in results]
    assert turns == [6, *[LEAST_ROUNDS] * 3, 6, 6, 6]


def test_the_fastest_other_runtime_goes_on_however_slow() -> None:
    runtimes = [Scripted(30, is_runtime=True), Scripted(25, is_runtime=True)]

    results = held(Scripted(10), Scripted(4), *runtimes)

    assert [len(result.ratios) for result in results] == [6, 6, LEAST_ROUNDS, 6]


def test_who_is_wrong_runs_once() -> None:
    right, wrong = Scripted(1), Scripted(1, error=0.01)

    _, result = held(right, wrong)

    assert wrong.runs == 1
    assert (result.latency_us, result.runs) == (None, 0)
    assert result.max_rel_error == pytest.approx(0.01)


def test_who_fails_says_why_and_a_failing_baseline_ends_the_contest() -> None:
    def fails(_: Arrays) -> Arrays:
        raise PreconditionFailed("no session")

    contenders = [TimedContender(Scripted(1)), TimedContender(timed_aside(fails))]
    results, _ = finish(compare(contenders, [Check({}, REFERENCE)], OPTIONS))
    assert results[1].problem == "no session"

    with pytest.raises(WorkerFault, match="no session"):
        finish(compare(contenders[::-1], [Check({}, REFERENCE)], OPTIONS))


def test_progress_is_told_by_turns() -> None:
    slow = [TimedContender(Scripted(200)), TimedContender(Scripted(200))]  # milliseconds
    options = ComparisonOptions(tolerance=1e-4, rounds=RoundOptions(4, pause_s=0.0))

    told = list(dict.fromkeys(compare(slow, [Check({}, REFERENCE)], options)))

    assert told == [step / 8 for step in range(9)]


def test_every_run_is_followed_by_a_turn_for_inference_and_progress_grows() -> None:
    plans = [Scripted(1), Scripted(1)]
    comparison = compare([TimedContender(plan) for plan in plans], [Check({}, REFERENCE)], OPTIONS)

    turns = list(comparison)

    assert len(turns) >= sum(plan.runs for plan in plans)
    assert turns == sorted(turns)
    assert turns[-1] == 1.0


def test_a_run_that_the_device_timed_as_nothing_is_timed_again() -> None:
    told = iter([4000.0, 0.0] * 500)
    odd = TimedContender(Scripted(4), timed_us=lambda _: next(told))

    (baseline, result), _ = finish(
        compare([TimedContender(Scripted(4)), odd], [Check({}, REFERENCE)], OPTIONS)
    )

    assert (baseline.latency_us, result.latency_us, set(result.ratios)) == (4000, 4000, {1.0})


class Request(YieldToRequests):
    """One that takes 10 ms or more, each time that somebody pauses; knows what it took in all."""

    def __init__(self) -> None:
        self.arrived, self.sent = socket.socketpair()
        self.sent.send(b"r")
        self.took_us = 0.0
        self.was_answered = threading.Event()

    @property
    def arrivals(self) -> int | None:
        return self.arrived.fileno()

    def answer(self) -> bool:
        self.arrived.recv(1)
        self()
        self.was_answered.set()
        return True

    def __call__(self) -> bool:
        began = time.perf_counter()
        time.sleep(0.01)
        self.took_us += (time.perf_counter() - began) * 1e6
        return True


def test_requests_in_the_middle_of_a_run_are_not_in_its_time() -> None:
    def pauses(inputs: Arrays, pause: YieldToRequests) -> Arrays:
        time.sleep(0.002)
        pause()
        return {}

    def cannot_pause(_: Arrays) -> Arrays:
        assert request.was_answered.wait(120)
        time.sleep(0.1)  # the pause may end a little later than it says
        return {}

    for run in (timed(pauses), timed_aside(cannot_pause)):
        request = Request()
        try:
            began = time.perf_counter()
            ran = run({}, request)
            elapsed_us = (time.perf_counter() - began) * 1e6
        finally:
            request.arrived.close()
            request.sent.close()
        assert ran.was_interrupted
        assert 1e3 < ran.latency_us <= elapsed_us - request.took_us


def test_who_errs_no_more_than_the_baseline_stays_in_the_comparison() -> None:
    baseline, same, worse = held(
        Scripted(8, error=0.1), Scripted(7, error=0.1), Scripted(4, error=0.2)
    )

    assert baseline.runs == same.runs > 2
    assert worse.runs == 0


def test_a_sample_is_tried_until_nothing_interrupts_it() -> None:
    taken = [(9.0, True), (8.0, False), (1.0, False)]
    samples = (NetTime(*sample) for sample in taken)

    assert uninterrupted(lambda: next(samples)) == 8.0


def test_of_samples_that_were_all_interrupted_the_least_counts() -> None:
    tries = iter(range(100, 200))

    assert uninterrupted(lambda: NetTime(float(next(tries)), True)) == 100.0
    assert next(tries) == 100 + ATTEMPTS


def test_a_sample_that_cannot_be_is_taken_again() -> None:
    taken = [(0.0, False), (float("nan"), False), (8.0, False)]
    samples = (NetTime(*sample) for sample in taken)

    assert uninterrupted(lambda: next(samples)) == 8.0


def test_if_no_sample_can_be_the_latency_is_what_the_clock_tells_from_nothing() -> None:
    assert 0 < uninterrupted(lambda: NetTime(0.0, False)) < 1
