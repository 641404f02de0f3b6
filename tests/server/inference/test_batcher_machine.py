"""Histories of the batcher that hypothesis thinks up, one event at a time, on a fake clock.

Requests come, go away and expire; rows are bad; the worker dies; plans are swapped; policies
change; models are unloaded and come back. Whatever the order: every request ends exactly once, with
its own rows or a reason that fits, and nothing waits beside an idle device longer than it may.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from braid.core.errors import BraidError, DeadlineExceeded, QueueFull, WorkerRestarting
from braid.server.store.serving_config import BatchPolicy
from tests.server.inference.batching import PARTS, Bench, FakeModel, settle

T = TypeVar("T")

PLANS_S = [
    {1: 0.010, 4: 0.012, 8: 0.014},
    {1: 0.001, 4: 0.005, 8: 0.009},
    {1: 0.003, 4: 0.1, 8: 2.0},
]
"""Latencies of all batch sizes in seconds; a model goes from one of these to another."""

BESIDE_S = {1: 0.004, 4: 0.006, 8: 0.012}
LONGEST_S = 8 * 8 * 2 * 2.0
"""Seconds in which any backlog here has ended: requests, runs alone, models, the slowest plan."""

POLICIES = st.builds(
    BatchPolicy,
    max_wait_s=st.sampled_from([0.0, 0.005, 0.05]),
    max_requests=st.integers(1, 16),
    max_rows=st.integers(8, 64),
    share=st.sampled_from([0.5, 1.0, 3.0]),
)


@dataclass(frozen=True)
class Arrival:
    """Request as it is drawn; ``within`` so many seconds it is to be answered."""

    rows: int
    priority: int
    within: float | None
    is_bad: bool


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        rows=st.integers(1, 11),
        priority=st.integers(1, 10),
        within=st.none() | st.sampled_from([0.0, 0.005, 0.02, 0.2]),
        is_bad=st.integers(0, 5).map(lambda number: number == 5),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class Sent:
    """Request with what may be expected of it."""

    task: asyncio.Task[list[int]]
    rows: list[int]
    at: float
    within: float | None
    is_cancelled: bool = False


class BatcherMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.bench: Bench = self.run(self.made())
        self.models = [self.loaded(BESIDE_S), self.loaded()]
        self.unloading: dict[FakeModel, asyncio.Task[None]] = {}
        self.sent: list[Sent] = []
        self.bad: set[int] = set()
        self.deaths: list[float] = []
        self.bench.device.is_bad = self.bad.__contains__

    async def made(self) -> Bench:
        return Bench(PLANS_S[0])

    def loaded(self, beside_s: dict[int, float] | None = None) -> FakeModel:
        return FakeModel(PLANS_S[0], BatchPolicy(max_requests=16, max_rows=64), beside_s)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def then_settle() -> T:
            result = await work
            await settle()
            return result

        return self.runner.run(then_settle())

    @rule(which=st.integers(0, 1), arrivals=ARRIVALS)
    def send(self, which: int, arrivals: list[Arrival]) -> None:
        async def submit() -> None:
            for arrival in arrivals:
                first = sum(len(each.rows) for each in self.sent)
                if arrival.is_bad:
                    self.bad.add(first)
                task = self.bench.send(
                    arrival.rows,
                    priority=arrival.priority,
                    within=arrival.within,
                    model=self.models[which],
                )
                numbers = list(range(first, first + arrival.rows))
                self.sent.append(Sent(task, numbers, self.bench.clock.now(), arrival.within))

        self.run(submit())

    @precondition(lambda self: any(not each.task.done() for each in self.sent))
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        waiting = [each for each in self.sent if not each.task.done()]
        gone = data.draw(st.sampled_from(waiting))
        gone.is_cancelled = True
        gone.task.cancel()
        self.run(settle())

    @rule(ms=st.sampled_from([0, 1, 3, 10, 40, 300]))
    def pass_time(self, ms: int) -> None:
        self.run(self.bench.clock.advance(ms / 1000))

    @rule(ms=st.integers(1, 20))
    def pass_a_moment(self, ms: int) -> None:
        self.run(self.bench.clock.advance(ms / 1000))

    @precondition(lambda self: len(self.deaths) < 3)
    @rule()
    def lose_the_worker(self) -> None:
        self.deaths.append(self.bench.clock.now())
        self.bench.device.die()
        self.run(settle())

    @rule(which=st.integers(0, 1), plan=st.sampled_from(PLANS_S))
    def swap_the_plan(self, which: int, plan: dict[int, float]) -> None:
        model = self.models[which]
        model.latencies_s = plan
        for size, seconds in plan.items():
            model._table.expect(size, seconds)
            if model.beside_s:
                model._table.expect(size, BESIDE_S[size], PARTS)

    @rule(which=st.integers(0, 1), prepare_s=st.sampled_from([0.0, 0.004]))
    def prepare_before_each_batch(self, which: int, prepare_s: float) -> None:
        self.models[which].prepare_s = prepare_s

    @rule(which=st.integers(0, 1), policy=POLICIES)
    def configure(self, which: int, policy: BatchPolicy) -> None:
        self.models[which].policy = policy

    @precondition(lambda self: len(self.unloading) < 3)
    @rule(which=st.integers(0, 1))
    def unload(self, which: int) -> None:
        """Requests go to a replica loaded anew; the accepted ones end on the old one."""
        old, self.models[which] = self.models[which], self.loaded()

        async def leave() -> None:
            await self.bench.batcher.drain(old)  # type: ignore[arg-type]
            self.bench.batcher.forget(old)  # type: ignore[arg-type]

        async def begin() -> None:
            self.unloading[old] = asyncio.create_task(leave())

        self.run(begin())

    @invariant()
    def all_that_ended_ended_rightly(self) -> None:
        for each in self.sent:
            if each.task.done():
                self.check(each)

    @invariant()
    def nothing_waits_beside_an_idle_device(self) -> None:
        if self.bench.batcher.is_running:
            return
        now = self.bench.clock.now()
        longest_s = max(0.05, *(model.policy.max_wait_s for model in self.models))
        for each in self.sent:
            assert each.task.done() or now <= each.at + longest_s + 1e-9, (each, now)

    def check(self, each: Sent) -> None:
        if each.task.cancelled():
            assert each.is_cancelled
            return
        error = each.task.exception()
        match error:
            case None:
                assert each.task.result() == each.rows
            case WorkerRestarting():
                assert any(each.at <= death for death in self.deaths), each
            case DeadlineExceeded():
                assert each.within is not None
                assert self.bench.clock.now() >= each.at + each.within
            case QueueFull():
                pass  # the limits are tested by themselves
            case BraidError():
                assert self.bad & set(each.rows), (each, error)
            case _:
                raise AssertionError(f"{each} ended with {error!r}")

    def teardown(self) -> None:
        self.run(self.bench.clock.advance(LONGEST_S))
        assert all(each.task.done() for each in self.sent)
        assert all(task.done() for task in self.unloading.values())
        self.all_that_ended_ended_rightly()
        batches = [batch.rows for batch in self.bench.device.batches]
        computed = [row for rows in batches for row in rows]
        answered = [row for each in self.sent if _has_answer(each) for row in each.rows]
        assert set(answered) <= set(computed)
        once = [row for rows in batches if not self.bad & set(rows) for row in rows]
        assert len(once) == len(set(once)), "only rows beside a bad one run again"
        assert self.bench.watcher.waiting == (0, 0)
        self.runner.close()


def _has_answer(each: Sent) -> bool:
    return not each.task.cancelled() and each.task.exception() is None


BatcherMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, derandomize=True
)
TestBatcher = BatcherMachine.TestCase
