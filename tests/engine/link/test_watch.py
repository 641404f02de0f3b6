"""When a worker is told to stop a run, and when it is replaced: from the status it reports."""

from typing import Any, cast

from braid.engine.link.messages import (
    AskStatus,
    ControlOrder,
    DescribeDevice,
    RunExecutable,
    StopRun,
    StopStep,
    WorkerStatus,
)
from braid.engine.link.options import WatchLimits
from braid.engine.link.watch import (
    GRACE_S,
    SILENT_TICKS,
    TICK_S,
    UNWANTED,
    OpenCall,
    RunBound,
    Watch,
)

ASK = AskStatus()


def problem_of(watch: Watch) -> str:
    return watch.problem


class World:
    """A watch, a clock that stands still, and a worker that answers unless told not to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = Watch(WatchLimits(silence_s=10.0, step_s=60.0), lambda: self.now)
        self.running: int | None = None
        self.began = 0.0
        self.step_began: float | None = None
        self.beside: dict[int, float] = {}  # when they began
        self.watch.heard(self.status())

    def status(self) -> WorkerStatus:
        run_s = self.now - self.began if self.running is not None else 0.0
        step_s = None if self.step_began is None else self.now - self.step_began
        beside = tuple((call, self.now - began) for call, began in self.beside.items())
        return WorkerStatus(self.running, run_s, step_s, beside)

    def runs(self, call: int, bound: RunBound | None = None) -> None:
        self.sends(call, bound or RunBound())
        self.running, self.began = call, self.now

    def sends(self, call: int, bound: RunBound | None) -> OpenCall:
        request = DescribeDevice() if bound is None else RunExecutable(1, 0)
        answer = cast(Any, object())
        sent = self.watch.calls[call] = OpenCall(request, answer, self.now, bound=bound)
        return sent

    def unwanted(self, call: int) -> list[ControlOrder]:
        return self.watch.unwanted(self.watch.calls[call].future)

    def hangs_in(self, call: int) -> bool:
        return self.watch.hung_call is self.watch.calls[call]

    def goes_on(self, seconds: float, *, answers: bool = True) -> list[ControlOrder]:
        """Let time pass; returns what the worker was told beside the questions."""
        orders: list[ControlOrder] = []
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            orders += [order for order in self.watch.tick() if order != ASK]
            if answers:
                self.watch.heard(self.status())
        return orders


def test_a_run_that_is_wanted_and_not_too_long_is_left_alone() -> None:
    world = World()
    world.runs(7, RunBound(limit_s=30.0))

    assert world.goes_on(29.0) == []
    assert not world.watch.problem
    assert not world.watch.calls[7].is_too_long


def test_a_run_over_its_limit_costs_the_worker_also_if_another_one_began_earlier() -> None:
    world = World()
    world.runs(6, RunBound(limit_s=100.0))
    world.sends(7, RunBound(limit_s=3.0))
    world.beside[7] = world.now

    (order,) = world.goes_on(3.5)
    assert isinstance(order, StopRun)
    assert order.call == 7
    world.goes_on(2.0)
    assert world.hangs_in(7)


def test_a_run_over_its_limit_is_stopped_and_then_costs_the_worker() -> None:
    world = World()
    world.runs(7, RunBound(limit_s=3.0, kill_after_s=100.0))

    (order,) = world.goes_on(3.5)
    assert isinstance(order, StopRun)
    assert order.call == 7
    assert "after 3 s on the device" in order.reason
    assert not world.watch.problem

    assert world.goes_on(2.0) == []
    assert problem_of(world.watch) == "a run did not end, 4.5 s after it began"
    assert world.hangs_in(7)
    assert world.watch.calls[7].is_too_long


def test_a_run_without_requests_is_stopped_and_costs_the_worker_if_it_goes_on() -> None:
    world = World()
    world.runs(7)

    assert world.unwanted(7) == [StopRun(7, UNWANTED)]
    assert world.unwanted(7) == [], "once"
    world.goes_on(GRACE_S + 2 * TICK_S)

    assert world.hangs_in(7)


def test_a_plan_that_takes_long_is_not_killed_for_its_callers_short_deadline() -> None:
    world = World()
    world.runs(7, RunBound(limit_s=60.0, kill_after_s=10.0))
    world.unwanted(7)

    world.goes_on(9.0)
    assert not world.watch.problem
    world.goes_on(2.0)
    assert world.hangs_in(7)


def test_a_run_that_waits_behind_another_costs_no_worker() -> None:
    world = World()
    world.runs(7, RunBound(limit_s=60.0))
    world.sends(8, RunBound(limit_s=1.0))
    world.unwanted(8)

    assert world.goes_on(20.0) == []
    assert not world.watch.problem


def test_a_worker_that_says_nothing_is_replaced() -> None:
    world = World()
    world.goes_on(SILENT_TICKS * TICK_S, answers=False)
    assert world.watch.is_silent
    assert not world.watch.problem

    world.goes_on(10.0, answers=False)
    assert problem_of(world.watch) == "it did not answer for 10 s"
    assert world.watch.hung_call is None


def test_a_silent_worker_is_replaced_soon_when_a_run_is_overdue() -> None:
    world = World()
    world.runs(7)
    world.unwanted(7)
    world.goes_on(2.5, answers=False)

    assert "nor end a late run" in world.watch.problem
    assert world.hangs_in(7)


def test_a_worker_that_was_suspended_with_its_front_end_is_not_replaced() -> None:
    world = World()
    world.now += 3600.0

    assert world.goes_on(5.0) == []
    assert not world.watch.problem


def test_a_worker_that_is_only_starting_is_not_judged() -> None:
    watch = Watch(WatchLimits(silence_s=1.0))

    assert [watch.tick() for _ in range(100)] == [[ASK]] * 100
    assert not watch.problem
    assert not watch.is_silent


def test_a_step_of_other_work_is_stopped_and_then_costs_the_worker() -> None:
    world = World()
    world.step_began = world.now
    world.sends(9, None)

    (order,) = world.goes_on(61.0)
    assert isinstance(order, StopStep)
    world.step_began = world.now  # it ended, and another one began
    assert world.goes_on(5.0) == []
    assert not world.watch.problem

    world.goes_on(70.0)
    assert world.watch.problem
    assert world.hangs_in(9)
