"""Comparisons on a machine that other processes use, by what they would do to each run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from braid.core.cpu_times import CpuTimes
from braid.core.measurement import PlanMeasurement
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.comparison import Check, ComparisonOptions, compare
from braid.engine.timing.contenders import TimedContender
from braid.engine.timing.counted_rounds import LEAST_LOST, WINDOW_S, CountedRounds
from braid.engine.timing.rounds import RoundOptions
from braid.engine.timing.runs import TimedRun
from braid.engine.timing.samples import Sampler
from tests.engine.timing.running import finish

REFERENCE = {"y": torch.tensor([1.0, -2.0])}
ROUNDS = RoundOptions(max_rounds=6, turn_s=0.02, most_turn_s=600.0, pause_s=0.0)
OPTIONS = ComparisonOptions(tolerance=1e-4, budget_s=600.0, rounds=ROUNDS)
CORES = 2


@dataclass
class Machine:
    """Time passes in runs; ``takes`` says how long threads wait in the run of a number, in ms."""

    takes: Callable[[int], float] = lambda run: 0.0
    is_by_others: bool = True  # other processes have the cores meanwhile
    steals: Callable[[int], float] = lambda run: 0.0  # part of the cores' time
    now: float = 1000.0
    own_part: float = 1.0  # of the cores' time, used by what is measured
    idle_part: float = 0.0
    ticks: float = 0.0
    own_s: float = 0.0
    stolen: float = 0.0
    runs: int = 0

    def ran(self, ms: float) -> TimedRun:
        """A run of so much work."""
        waited_ms = self.takes(self.runs)
        passed_ms = ms + waited_ms
        self.now += passed_ms / 1e3
        self.ticks += CORES * passed_ms
        own_ms = ms if self.is_by_others else passed_ms
        self.own_s += self.own_part * len(os.sched_getaffinity(0)) * own_ms / 1e3
        self.stolen += CORES * passed_ms * self.steals(self.runs)
        self.runs += 1
        return TimedRun(REFERENCE, passed_ms * 1e3, waited_ms > 0, 0.0, waited_ms / passed_ms)

    def counted(self, patience_s: float = 10.0) -> CountedRounds:
        """The judge of a comparison here."""
        return CountedRounds(
            patience_s,
            again_s=0.0,
            clock=lambda: self.now,
            cpu_times=lambda: CpuTimes(
                round(self.ticks), round(self.idle_part * self.ticks), round(self.stolen)
            ),
            own_s=lambda: self.own_s,
        )


@dataclass
class Plan:
    """Takes ``ms`` on a machine that leaves it the cores, and waits where that takes them."""

    ms: float
    machine: Machine
    is_hit: bool = True  # by what the machine takes
    runs: list[float] = field(default_factory=list)

    def __call__(self, _: Mapping[str, Tensor], __: YieldToRequests) -> TimedRun:
        ran = self.machine.ran(self.ms)
        if not self.is_hit:
            ran = replace(ran, latency_us=self.ms * 1e3, was_interrupted=False, waited=0.0)
        self.runs.append(ran.latency_us)
        return ran


def held(
    machine: Machine, *plans: Plan, options: ComparisonOptions = OPTIONS, patience_s: float = 10.0
) -> list[PlanMeasurement]:
    contenders = [TimedContender(plan) for plan in plans]
    contenders[0].sampler = Sampler(lambda: machine.now)
    checks, counted = [Check({}, REFERENCE)], machine.counted(patience_s)
    results, _ = finish(compare(contenders, checks, options, counted=counted))
    return results


def test_what_other_processes_did_to_the_baseline_makes_no_plan_faster() -> None:
    machine = Machine(takes=lambda run: 40.0)
    sequential = Plan(60.0, machine)
    slower = Plan(90.0, machine, is_hit=False)  # beside 100 ms: it looks 1.1 times as fast

    results = held(machine, sequential, slower)

    assert all(result.doubt for result in results)
    assert "threads waited for their cores for 29% of a run" in results[0].doubt
    assert [result.ratios for result in results] == [(), ()]
    assert [result.turns_us for result in results] == [(), ()]
    assert results[0].latency_us == 100_000, "what was seen is shown all the same"


def test_nobody_is_given_up_in_rounds_that_do_not_count() -> None:
    machine = Machine(takes=lambda run: 40.0)
    sequential = Plan(60.0, machine, is_hit=False)
    faster = Plan(55.0, machine)  # with 40 ms more it seems 1.6 times as slow

    baseline, result = held(machine, sequential, faster)

    assert result.doubt
    assert result.runs == baseline.runs > LEAST_LOST, "it ran to the end"


def test_a_plan_whose_own_threads_wait_for_each_other_puts_nothing_in_doubt() -> None:
    machine = Machine(takes=lambda run: 40.0, is_by_others=False)
    sequential = Plan(120.0, machine, is_hit=False)
    waiting, slow = Plan(60.0, machine), Plan(150.0, machine)  # 100 and 190 ms each time

    found = held(machine, sequential, waiting, slow)

    assert [result.doubt for result in found] == ["", "", ""]
    assert {round(ratio, 6) for ratio in found[1].ratios} == {1.2}
    assert len(found[2].ratios) < len(found[1].ratios), "it was given up"


@pytest.mark.parametrize("every", [2, 3])
def test_rounds_between_bursts_of_other_work_decide_as_on_a_quiet_machine(every: int) -> None:
    quiet = Machine()
    calm = held(quiet, Plan(60.0, quiet), Plan(50.0, quiet))
    # Other work takes the cores for a second at a time.
    busy = Machine()
    busy.takes = lambda run: 200.0 if int(busy.now) % every == 0 else 0.0

    found = held(busy, Plan(60.0, busy), Plan(50.0, busy), patience_s=1e9)

    assert [result.doubt for result in found] == ["", ""]
    assert [result.latency_us for result in found] == [result.latency_us for result in calm]
    assert {round(ratio, 6) for ratio in found[1].ratios} == {1.2}
    assert found[1].range_us == ()
    assert len(found[1].ratios) == len(calm[1].ratios)


def test_a_machine_that_stays_busy_ends_the_comparison_after_a_bounded_time() -> None:
    machine = Machine(takes=lambda run: 500.0)
    began = machine.now

    results = held(machine, Plan(60.0, machine), Plan(50.0, machine), patience_s=10.0)

    assert results[0].doubt
    warm_up_s, round_s = 2 * 0.6, 2 * 2 * 0.6 * 3  # each sample is tried some times
    assert machine.now - began <= warm_up_s + 10.0 + LEAST_LOST * round_s


def test_too_few_rounds_that_count_leave_the_comparison_in_doubt() -> None:
    machine = Machine()
    one, other = Plan(60.0, machine), Plan(50.0, machine)
    # Quiet for three rounds; in each, both plans run once before the run that counts.
    machine.takes = lambda run: 0.0 if run < 2 + 2 * 2 * 3 else 500.0

    _, result = held(machine, one, other)

    assert result.doubt
    assert result.ratios == ()
    assert result.latency_us == 50_000, "of the rounds that counted"
    assert result.range_us == (50_000, 550_000), "of all rounds"


def test_runs_that_the_host_took_the_cores_from_do_not_count() -> None:
    machine = Machine(steals=lambda run: 0.5)

    results = held(machine, Plan(60.0, machine), Plan(50.0, machine))

    assert "the host of this machine took 50% of the cores" in results[0].doubt


def test_little_that_the_host_takes_and_a_short_moment_are_no_reason_to_doubt() -> None:
    machine = Machine(steals=lambda run: 0.1)
    assert not held(machine, Plan(60.0, machine), Plan(50.0, machine))[0].doubt

    machine = Machine(steals=lambda run: 1.0 if run == 20 else 0.0)
    assert 1.0 * 0.06 / WINDOW_S < 0.2
    assert not held(machine, Plan(60.0, machine), Plan(50.0, machine))[0].doubt


def test_a_plan_whose_runs_scatter_by_more_than_they_take_is_not_told_to_be_faster() -> None:
    machine = Machine()
    sequential = Plan(60.0, machine)
    wild = Plan(1.0, machine)
    # Nothing that the kernel tells of: caches, clocks, a neighbour on the other hyperthread.
    latencies = [5.0, 45.0, 5.0, 45.0, 5.0, 5.0, 45.0]

    def run(inputs: Mapping[str, Tensor], pause: YieldToRequests) -> TimedRun:
        wild.ms = latencies[len(wild.runs) % len(latencies)]
        return wild(inputs, pause)

    results, _ = finish(
        compare(
            [TimedContender(sequential), TimedContender(run)],
            [Check({}, REFERENCE)],
            OPTIONS,
            counted=machine.counted(),
        )
    )

    assert results[1].spread is not None
    assert "scatter by 800% of what they take" in results[1].doubt
    assert results[1].ratios == ()


def test_a_comparison_most_of_whose_rounds_do_not_count_is_in_doubt_for_all_others() -> None:
    machine = Machine()
    machine.takes = lambda run: 200.0 if int(machine.now) % 3 else 0.0  # two of three seconds

    results = held(machine, Plan(60.0, machine), Plan(50.0, machine), patience_s=1e3)

    assert results[0].doubt
    assert results[1].ratios == ()


def test_threads_that_are_more_than_the_cores_wait_for_each_other() -> None:
    machine = Machine(takes=lambda run: 40.0)
    plans = [TimedContender(Plan(60.0, machine)), TimedContender(Plan(50.0, machine))]
    counted = CountedRounds(threads=10_000, again_s=0.0, cpu_times=CpuTimes)

    results, _ = finish(compare(plans, [Check({}, REFERENCE)], OPTIONS, counted=counted))

    assert not results[0].doubt


@pytest.mark.parametrize(("part", "counts"), [(0.05, True), (0.2, False)])
def test_where_threads_wait_for_each_other_what_other_processes_took_decides(
    part: float, counts: bool
) -> None:
    machine = Machine(own_part=1.0 - part)
    counted = machine.counted()
    for _ in range(LEAST_LOST):
        counted.begin()
        machine.ran(600.0)
        assert counted.end(None) is counts

    assert counted.has_lost_too_many is not counts
    if not counts:
        assert "other processes took 20% of the cores" in counted.reason


def test_cores_that_stay_idle_are_taken_by_nobody() -> None:
    machine = Machine(own_part=0.5, idle_part=0.5)
    counted = machine.counted()
    counted.begin()
    machine.ran(600.0)

    assert counted.end(None)
