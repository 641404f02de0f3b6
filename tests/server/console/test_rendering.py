import asyncio
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jinja2 import Environment, UndefinedError
from jinja2.nodes import CondExpr

from braid.compiler.options import ModelOptions
from braid.core.errors import ModelNotFound, StoreUnavailable
from braid.core.graph import Operator, OpGraph
from braid.core.plan import Launch, StreamPlan, sequential_plan
from braid.core.runtimes import SERVED_WHOLE
from braid.core.schedule import Contender, Provenance, Schedule, ScheduleKey
from braid.core.tensor import TensorType
from braid.server.console import pictures, rendering
from braid.server.console.facts import Facts
from braid.server.console.formats import PlanName, left, plan_names, rate, state
from braid.server.console.pages import jobs, models
from braid.server.console.pages.devices import devices
from braid.server.console.rendering import Page, Renderer, url
from braid.server.inference.replica import ModelReplica
from braid.server.models.queries import Placed
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    NodeRecord,
    ShownNode,
)
from tests import ROOT

TEMPLATES = ROOT / "server/console/templates"
EVIL = '<b onclick="x">&\'"'
JOB = JobRecord("0123", "cnn", 1, JobStatus.SCHEDULING, 0.5, "batch size 2: searching, 3 stages")


class Tags(HTMLParser):
    """Names of the elements and of their attributes, and the text."""

    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(document.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def facts(schedules: dict[str, list[int]], *, is_deleted: bool = False, other: str = "") -> Facts:
    """A server whose devices have schedules of these batch sizes, at the main shapes.

    ``other``: shapes that it is scheduled for as well.
    """
    shapes = ["", other] if other else [""]
    model = ModelVersion("cnn", 1, "00", 10, ModelOptions((1, 2, 4)))

    async def find(name: str, version: str) -> ModelVersion:
        if is_deleted:
            raise ModelNotFound(name)
        return model

    async def placed(of: ModelVersion) -> list[Any]:
        found = [(device, size) for device, sizes in schedules.items() for size in sizes]
        keys = [(device, SimpleNamespace(batch_size=size)) for device, size in found]
        return [SimpleNamespace(device=device, schedule=SimpleNamespace(key=key))
                for device, key in keys]  # fmt: skip

    async def job(job_id: str) -> JobRecord:
        return JOB

    devices = SimpleNamespace(all=[SimpleNamespace(name=name) for name in schedules])
    return cast(
        Facts,
        SimpleNamespace(
            queries=SimpleNamespace(find=find, schedules=placed),
            runner=SimpleNamespace(find=job),
            devices=devices,
            served=lambda of: None,
            models=SimpleNamespace(scheduled_shapes=lambda of: shapes),
            other_shapes=lambda of, placed: "",
        ),
    )


async def test_values_are_text_wherever_they_stand() -> None:
    evil = replace(JOB, model=EVIL, detail=EVIL, message=EVIL)
    shown = {"job": evil, "phases": [jobs.ShownStep(EVIL)], "batch_sizes": []}

    made = Tags(await Renderer().html(Page("job.html", EVIL, shown), is_admin=True))

    assert "b" not in made.names
    assert "onclick" not in made.attributes
    assert made.text.count(EVIL) >= 4
    assert url(EVIL, q=EVIL).isascii()
    assert not set(url(EVIL, q=EVIL)) & set("<>\"'")


def fleet_facts(answer: list[ShownNode] | Exception) -> Facts:
    """A node of a fleet whose database answers, or does not."""

    async def nodes() -> list[ShownNode]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    listed = SimpleNamespace(is_shared=True, nodes=nodes)
    return cast(
        Facts, SimpleNamespace(nodes=listed, devices=SimpleNamespace(all=[]), settings={"A": "b"})
    )


async def test_the_page_of_devices_lists_the_nodes_of_a_fleet_and_their_jobs() -> None:
    here = NodeRecord("node-a", "10.0.0.1:8001", "cpu:X:threads=2", "1.0")
    away = replace(here, id=EVIL, is_alive=False)
    shown = [ShownNode(here, 2.4, ("job-1",), True), ShownNode(away, 90.0, (), False)]

    page = await Renderer().html(await devices(fleet_facts(shown)), is_admin=False)

    text = " ".join(Tags(page).text.split())
    assert "node-a (this one) ● ready 10.0.0.1:8001 cpu:X:threads=2 1.0 2 s ago job-1" in text
    assert f"{EVIL} ✕ lost" in text
    assert url("jobs", "job-1").encode() in page


async def test_the_page_of_devices_shows_while_the_database_is_away() -> None:
    facts = fleet_facts(StoreUnavailable("the store's database cannot be reached"))

    page = await Renderer().html(await devices(facts), is_admin=False)

    assert "the store's database cannot be reached" in Tags(page).text
    assert "Settings" in Tags(page).text


async def test_a_name_that_a_page_forgot_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="jobs"):
        await Renderer().html(Page("jobs.html", "Jobs", {}), is_admin=False)


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.iterdir()))
def test_every_condition_says_what_stands_there_otherwise(name: str) -> None:
    parsed = Environment().parse((TEMPLATES / name).read_text())

    assert [each.lineno for each in parsed.find_all(CondExpr) if each.expr2 is None] == []


async def test_other_work_runs_while_a_long_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SLICE_SECONDS", 0.0)
    renderer, turns = Renderer(), 0
    renderer.compile()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await renderer.html(Page("jobs.html", "Jobs", {"jobs": [JOB] * 50}), is_admin=False)
    counting.cancel()
    assert turns > 50


def test_options_that_all_plans_of_a_planner_share_are_on_demand() -> None:
    found = plan_names(
        [
            "lazy-ios(r=3,s=8,gap=0.01)",
            "lazy-ios(r=3,s=8,join=group,gap=0.01)",
            "greedy",
            "greedy(join=unit)",
            "ios(r=3,s=8)",
        ]
    )

    assert list(found.values()) == [
        PlanName("lazy-ios", "r=3, s=8, gap=0.01"),
        PlanName("lazy-ios(join=group)", "r=3, s=8, gap=0.01"),
        PlanName("greedy"),
        PlanName("greedy(join=unit)"),
        PlanName("ios", "r=3, s=8"),
    ]


def test_every_state_has_one_word_and_failures_are_marked() -> None:
    words = [state(each).word for each in JobStatus]
    assert len(set(words)) == len(words)
    assert all(word.isalpha() for word in words)
    failed = {each for each in (*JobStatus, *ModelStatus) if state(each).kind == "bad"}
    assert failed == {JobStatus.FAILED, ModelStatus.FAILED, ModelStatus.DAMAGED}
    assert (left(-1.0), left(59.6), left(0.2)) == ("", "1 min 00 s", "0 s")
    assert (rate(0.0), rate(1 / 60), rate(0.06), rate(20.0)) == ("0.0", "under 0.1", "0.1", "20.0")


async def test_a_job_says_which_batch_sizes_are_done() -> None:
    page = await jobs.one_job(facts({"cpu": [1]}), "0123")

    assert page.facts["batch_sizes"] == [
        jobs.ShownStep("1", is_done=True),
        jobs.ShownStep("2", is_now=True),
        jobs.ShownStep("4"),
    ]
    phases = cast(list[jobs.ShownStep], page.facts["phases"])
    assert [step.text for step in phases if step.is_done] == ["queued", "importing", "measuring"]
    assert [step.text for step in phases if step.is_now] == ["searching"]


async def test_a_job_says_which_shapes_are_done() -> None:
    page = await jobs.one_job(facts({"cpu": [1, 2, 4]}, other="length=8"), "0123")

    steps = cast(list[jobs.ShownStep], page.facts["batch_sizes"])
    assert [step.text for step in steps[3:]] == [f"{size} at length=8" for size in (1, 2, 4)]
    assert [step.text for step in steps if step.is_done] == ["1", "4"]


async def test_a_job_of_a_deleted_model_still_has_its_page() -> None:
    page = await jobs.one_job(facts({"cpu": []}, is_deleted=True), "0123")

    assert page.facts["batch_sizes"] == []


UNITS = ("a", "b")
ONE_BY_ONE = Schedule(ScheduleKey("00", "cpu", 1), "sequential", sequential_plan(2), (), UNITS)
SIDE_BY_SIDE = replace(
    ONE_BY_ONE, planner="greedy", plan=StreamPlan((Launch(0, 0), Launch(1, 1)), 2)
)
MEASURED = (
    Contender("sequential", 4160.0),
    Contender("greedy", 4150.0),
    Contender("openvino", 4130.0),
    Contender("onnxruntime-1", 9000.0, remark="wrong outputs"),
)


@pytest.mark.parametrize(
    ("schedule", "seen", "text"),
    [
        (
            replace(ONE_BY_ONE, planner="openvino"),
            Provenance(measured_us=4130.0, candidates=MEASURED),
            "OpenVINO, 4.13 ms at batch size 1 on cpu; Braid's own plan 4.15 ms; "
            "the fastest of 4 candidates at registration",
        ),
        (
            SIDE_BY_SIDE,
            Provenance(measured_us=4150.0, candidates=MEASURED[:2]),
            "Braid's own plan, 4.15 ms at batch size 1 on cpu; no other engine was compared",
        ),
        (
            SIDE_BY_SIDE,
            Provenance(sequential_us=4160.0, promoted=False, reason="not faster"),
            "Braid's own plan, one operator after another, 4.16 ms at batch size 1 on cpu; "
            "not faster",
        ),
        (None, None, "ONNX Runtime, as Braid's own plans cannot run all operators of this model"),
    ],
)
def test_one_line_says_what_serves_and_why(
    schedule: Schedule | None, seen: Provenance | None, text: str
) -> None:
    model = ModelVersion("cnn", 1, "00", 10, ModelOptions((1,)))
    served = cast(ModelReplica, SimpleNamespace(warnings=[f"{SERVED_WHOLE}: Scaler"]))
    placed = []
    if schedule is not None and seen is not None:
        placed = [Placed("cpu", replace(schedule, provenance=seen))]

    assert models._why(model, served, placed) == text
    assert models._why(model, None, placed).startswith("nothing: this version is ")


@pytest.mark.parametrize(("schedule", "tracks"), [(ONE_BY_ONE, 1), (SIDE_BY_SIDE, 2)])
def test_a_plan_that_is_the_sequential_one_is_drawn_once(schedule: Schedule, tracks: int) -> None:
    spec = TensorType("FP32", (1, 4))
    units = tuple(Operator(name, "aten.relu", ("x",), (f"{name}_out",), {}) for name in UNITS)
    graph = OpGraph(
        *("two", {"x": spec}, {"y": "a_out", "z": "b_out"}, {}, units),
        {"a_out": spec, "b_out": spec},
    )
    drawn = pictures.Drawn("two", schedule, graph)

    assert len(drawn.tracks) == tracks
    assert pictures.svg(drawn).count('class="bar') == 2 * tracks
    assert pictures.trace(drawn)["traceEvents"]
