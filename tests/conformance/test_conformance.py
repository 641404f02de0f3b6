"""onnx's own backend tests: the kept results are what the engine gives, and are documented."""

import os

import pytest
from onnx import defs

from braid.engine.onnx.lowering_table import NEWEST_OPSET
from tests.conformance.cases import Case, load_cases
from tests.conformance.document import DOCUMENT, as_markdown, unexplained
from tests.conformance.results import Result, Verdict, read_run, run_of
from tests.conformance.workers import run_cases

pytestmark = pytest.mark.skipif(
    defs.onnx_opset_version() < NEWEST_OPSET, reason="the installed onnx is older than the table"
)


def test_document_is_current() -> None:
    assert DOCUMENT.read_text() == as_markdown(read_run()), "run: make onnx-backend"


def test_enough_cases_pass_and_no_wrong_result_is_unexplained() -> None:
    run = read_run()

    whole = sum(result.verdict is Verdict.WHOLE for result in run.others)
    assert sum(run.passed.values()) >= 1645  # may rise, never fall, as may the next
    assert sum(run.passed.values()) + whole >= 1776
    assert [r for r in run.others if r.verdict is Verdict.FAILED or r.kind == "light"] == []
    assert unexplained(run.others) == []


class Fatal(Case):
    def __init__(self) -> None:
        super().__init__("fatal", "x", "x", 0.0, 0.0, b"", [])

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (1,)


@pytest.mark.ci
def test_a_worker_that_dies_costs_one_case() -> None:
    seen: list[Result] = []
    cases = [
        case for case in load_cases(["simple"]) if "shrink" in case.name or "sign" in case.name
    ]

    results = run_cases([*cases, Fatal(), *cases], 1, seen.append)

    assert [r.verdict for r in results] == [*["passed"] * 2, "failed", *["passed"] * 2]


@pytest.mark.ci
def test_the_kept_results_are_what_the_engine_gives() -> None:
    run = read_run()
    kept = {result.name: result.verdict for result in run.others}

    results = run_cases(load_cases(), 1, lambda _: None)

    changed = {r.name: (kept.get(r.name, Verdict.PASSED), r.verdict, r.reason) for r in results}
    assert {name: found for name, found in changed.items() if found[0] is not found[1]} == {}
    assert run_of(run.versions, results).passed == run.passed
