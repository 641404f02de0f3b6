"""A search in a thread: its plans, its limits, and that it can be ended at any moment."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest

from braid.compiler import search_thread
from braid.compiler.planner import PlanningFailed
from braid.compiler.planner_messages import StageQuery
from braid.compiler.planning import AskLatencies, find_plans
from braid.compiler.search_thread import Search, SearchThread
from braid.core.errors import InvalidRequest
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned
from tests.clock import until
from tests.compiler.test_planner_process import COST, DIAMOND, FACTS, facts, graph

PLENTY = 8 << 30


def answers(queries: Sequence[StageQuery]) -> list[float]:
    return [COST.stage_latency_us(query.stage) for query in queries]


def plans_of(search: Search, memory_bytes: int = PLENTY, seconds: float = 60.0) -> list[Planned]:
    with SearchThread(search, memory_bytes, seconds) as thread:
        while thread.plans is None:
            if (question := thread.next_question()) is not None:
                thread.answer(answers(question))
    return list(thread.plans)


def searching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "search"]


@pytest.mark.parametrize("planner", ["ios", "lazy-ios", "portfolio"])
def test_its_plans_are_those_of_a_search_that_answers_itself(planner: str) -> None:
    search = partial(find_plans, DIAMOND, PlannerSettings(planner), FACTS)

    ours, expected = plans_of(search), search(answers)

    assert [(one.planner, one.plan, one.stages) for one in ours] == [
        (one.planner, one.plan, one.stages) for one in expected
    ]
    until(lambda: not searching())


def test_a_search_without_end_is_ended_by_its_limit() -> None:
    def endless(ask: AskLatencies) -> Sequence[Planned]:
        while True:
            pass

    with pytest.raises(PlanningFailed, match=r"searched for more than 0\.2 s"):
        plans_of(endless, seconds=0.2)

    until(lambda: not searching())


def test_time_in_which_it_waits_for_an_answer_does_not_count() -> None:
    def asks(ask: AskLatencies) -> Sequence[Planned]:
        return find_plans(DIAMOND, PlannerSettings("sequential"), FACTS, ask)

    with SearchThread(asks, PLENTY, 1e9) as thread:
        question = thread.next_question()
        while question is None:
            question = thread.next_question()
        assert [thread.next_question() for _ in range(3)] == [None] * 3
        thread.answer(answers(question))
        until(lambda: thread.next_question() is None and thread.plans is not None)


def test_a_search_that_takes_too_much_memory_says_so() -> None:
    def greedy(ask: AskLatencies) -> Sequence[Planned]:
        kept: list[bytearray] = []
        while True:
            kept.append(bytearray(b"x" * (1 << 20)))

    with pytest.raises(PlanningFailed, match="BRAID_MEMORY_BYTES"):
        plans_of(greedy, memory_bytes=64 << 20)

    until(lambda: not searching())


def test_it_ends_where_it_waits_for_an_answer_that_never_comes() -> None:
    search = partial(find_plans, DIAMOND, PlannerSettings("ios"), FACTS)
    with SearchThread(search, PLENTY, 60.0) as thread:
        until(lambda: thread.next_question() is not None)
        assert searching()

    assert not searching()


def test_errors_of_the_planner_are_failed_plans() -> None:
    def refuses(ask: AskLatencies) -> Sequence[Planned]:
        raise InvalidRequest("too big for the search")

    def crashes(ask: AskLatencies) -> Sequence[Planned]:
        raise ZeroDivisionError

    with pytest.raises(PlanningFailed, match="too big for the search"):
        plans_of(refuses)
    with pytest.raises(PlanningFailed, match="crashed"):
        plans_of(crashes)


def test_a_graph_that_is_too_wide_is_refused_or_runs_out_of_a_limit() -> None:
    leaves = [f"u{n}" for n in range(22)]
    wide = graph({**dict.fromkeys(leaves, "x"), "last": leaves})
    settings = PlannerSettings("ios", max_group_ops=None, max_groups=None, max_block_ops=None)

    def search(ask: AskLatencies) -> Sequence[Planned]:
        return find_plans(wide, settings, facts(23), lambda queries: [1.0] * len(queries))

    with pytest.raises(PlanningFailed, match=r"memory|too big|takes at most|searched for more"):
        plans_of(search, memory_bytes=64 << 20, seconds=20.0)


def test_a_search_ends_though_finalisers_swallow_its_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_thread, "END_SECONDS", 120.0)  # against hanging
    steps: set[str] = set()  # no Event: a stop inside one would leave its lock taken

    class Finalised:
        def __del__(self) -> None:
            if not steps:
                steps.add("finalising")
                while True:
                    pass

    def search(ask: AskLatencies) -> Sequence[Planned]:
        while True:
            Finalised()
            steps.add("the stop was swallowed")

    thread = SearchThread(search, PLENTY, 600.0)
    until(lambda: bool(steps))
    thread.close()

    assert "the stop was swallowed" in steps
    assert not searching()
