"""What a registration chose beside all candidates: cases follow the state of the machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks import chosen
from benchmarks.chosen import Case, Lab, follow, is_new, is_same, runs_of, summary
from benchmarks.planned import Scheduling, SearchedPlans, keep, kept
from braid.core.errors import DeviceChanged, PreconditionFailed
from braid.core.plan import EnginePart, StreamPlan, plan_to_json, sequential_plan
from braid.core.program import PlanToRun, ProgramKey
from braid.core.runtimes import ONNXRUNTIME, RUNTIMES
from braid.core.schedule import SEQUENTIAL


class Machine(Lab):
    """A lab whose machine is in the next state at each look, and then stays in the last one."""

    def __init__(self, states: Sequence[str], fails: str = "") -> None:
        self._states = [*states]
        self._fails = fails
        self.steps: list[tuple[str, str]] = []

    async def state(self) -> str:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    async def search(self, case: Case) -> None:
        self._step("search", case)
        case.chosen = "ios"

    async def measure(self, case: Case) -> None:
        self._step("measure", case)
        case.is_done = True

    def _step(self, what: str, case: Case) -> None:
        if case.network == self._fails:
            raise PreconditionFailed("it does not run")
        if self._states[0] != case.state:
            self.steps.append(("drop", case.name))
            raise DeviceChanged(case.state, self._states[0])
        self.steps.append((what, case.name))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "LOOK_S", 0.0)


def both_states(*networks: str) -> list[Case]:
    return [Case(network, 1, state) for network in networks for state in ("near", "far")]


def test_what_the_present_state_lacks_is_done_and_a_change_drops_a_step() -> None:
    machine = Machine(["near", "near", "far", "far", "far", "near"])

    asyncio.run(follow(both_states("net"), machine, inf))

    near, far = "net, batch 1, near", "net, batch 1, far"
    assert machine.steps == [
        ("search", near),
        ("drop", near),
        ("search", far),
        ("measure", far),
        ("measure", near),
    ]


def test_what_fails_is_told_and_the_others_go_on() -> None:
    cases = both_states("bad", "good")

    asyncio.run(follow(cases, Machine(["near", "near", "near", "near", "far"], "bad"), inf))

    assert [(case.failed, case.chosen) for case in cases] == [
        *[({"all": "it does not run"}, "")] * 2,
        *[({}, "ios")] * 2,
    ]


def test_nothing_begins_after_the_time() -> None:
    machine = Machine(["near"])

    asyncio.run(follow(both_states("net"), machine, -inf))

    assert machine.steps == []


def measured(state: str = "near", **turns_ms: list[float]) -> Case:
    return Case("net", 1, state, chosen="ios", turns_ms=turns_ms)


def test_a_ratio_is_of_turns_of_the_same_rounds() -> None:
    case = measured(ios=[1.0, 2.0, 1.1], fast=[1.0, 1.6, 1.0], left=[1.2, 2.4])

    assert case.best() == "fast"
    assert case.over_best == pytest.approx(1.1)
    assert case.ratio("left", "ios") == pytest.approx(1.2)


def test_the_hopeless_leave_and_what_was_chosen_stays() -> None:
    case = measured(ios=[2.0, 2.0], fast=[1.0, 1.1], near=[1.3, 1.2], slow=[1.5, 1.4])
    case.elsewhere = "slow"
    assert case.hopeful() == ["ios", "fast", "near", "slow"]
    case.elsewhere = ""
    assert case.hopeful() == ["ios", "fast", "near"]


def test_figures_stand_by_state_and_say_what_new_candidates_and_following_gain() -> None:
    near = measured(ios=[1.0, 1.0], sequential=[2.0, 2.0], openvino=[1.0, 1.0])
    far = measured("far", ios=[1.1, 1.1], sequential=[1.65, 1.65], openvino=[1.0, 1.0])
    far.elsewhere, near.is_new, far.is_new = "openvino", ["openvino"], ["openvino", "ios"]

    tables = summary([near, far, Case("other", 1, "far")])

    assert tables["near, batch 1"]["of the best"] == 1.0
    assert tables["near, batch 1"]["faster than without new candidates"] == 1.0
    assert tables["far, batch 1"] == {
        "networks": 1,
        "of the best": pytest.approx(1.1),
        "greatest": pytest.approx(1.1),
        "within 3 %": 0,
        "faster than without new candidates": pytest.approx(1.5),
        "faster than the other state's": pytest.approx(1 / 1.1),
    }


def searched(folder: Path, **plans: StreamPlan) -> SearchedPlans:
    """As kept by a search and read again."""
    folder.mkdir()
    found = SearchedPlans(
        *({}, SEQUENTIAL, SEQUENTIAL, {}, {}, {"openvino": "it is wrong"}),
        *(Scheduling(1.0, 2.0, 3, 4.0, {"FindFacts": 0.5}), {"a unit": "winograd"}),
    )
    for name, plan in {SEQUENTIAL: sequential_plan(2), **plans}.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(plan_to_json(plan)))
        found.plans[name] = path
    keep(found, folder)
    again = kept(folder)
    assert again == found
    return found


def test_candidates_are_those_of_the_search_and_all_runtimes(
    tmp_path: Path,
) -> None:
    parts = replace(sequential_plan(2), parts=(EnginePart((0,), ONNXRUNTIME, "1", 2),))

    runs = runs_of(ProgramKey("digest", ()), searched(tmp_path / "plans", mixed=parts), [*RUNTIMES])

    assert {*runs} == {SEQUENTIAL, "mixed", ONNXRUNTIME}
    assert {run.program.choices for run in runs.values()} == {(("a unit", "winograd"),)}
    assert {name for name, run in runs.items() if is_new(run)} == {"mixed"}


def test_a_runtime_is_the_same_on_any_kernels_and_a_plan_is_not() -> None:
    one, other = ProgramKey("digest", ()), ProgramKey("digest", (), choices=(("a", "b"),))
    plan, parts = sequential_plan(2), (EnginePart((0,), ONNXRUNTIME, "1", 2),)

    assert is_same(PlanToRun(one, None, "x", ONNXRUNTIME), PlanToRun(other, plan, "y", ONNXRUNTIME))
    assert not is_same(PlanToRun(one, plan, "x"), PlanToRun(one, None, "x", ONNXRUNTIME))
    assert is_same(PlanToRun(one, plan, "x"), PlanToRun(one, plan, "y"))
    assert not is_same(PlanToRun(one, plan), PlanToRun(other, plan))
    assert not is_same(PlanToRun(one, plan), PlanToRun(one, replace(plan, parts=parts)))
