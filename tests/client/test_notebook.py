from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np

from braid_client import BFloat16Bits, Client, InferResult, Job, JobState, Timing
from tests.client.fake_server import FakeServer


class Tables(HTMLParser):
    """Caption and rows of a table, each cell as its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.caption = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "all elements are closed"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] == "caption":
            self.caption += data
        else:
            self.rows[-1][-1] += data


def shown(record: Any) -> Tables:
    return Tables(record._repr_html_())


def result(**outputs: Any) -> InferResult:
    return InferResult(outputs, Timing(10, 20, 3000), 4, 3, "plan-1", "echo", "7", "mine")


def test_a_result_shows_its_outputs_its_plan_and_its_time() -> None:
    table = shown(
        result(
            y=np.array([[1.0, 2.0], [3.0, 6.0]], np.float32),
            half=BFloat16Bits.of(np.array([0.5, 1.5], np.float32)),
            none=np.zeros((0, 2), np.int64),
        )
    )

    assert table.caption == "echo, version 7, plan plan-1: 3.00 ms, of which 0.01 ms queue"
    assert table.rows[1:] == [
        ["y", "float32", "2 x 2", "1", "3", "6"],
        ["half", "bfloat16", "2", "0.5", "1", "1.5"],
        ["none", "int64", "0 x 2", "", "", ""],
    ]


def test_strings_have_no_mean() -> None:
    table = shown(result(y=np.array([b"cat", b"dog"], object)))

    assert table.rows[1] == ["y", "object", "2", "", "", ""]


def test_names_are_escaped() -> None:
    assert shown(result(**{"<b>y</b>": np.zeros(1)})).rows[1][0] == "<b>y</b>"


def test_a_model_and_its_plans_are_tables(server: FakeServer) -> None:
    with Client(server.address) as braid:
        model = braid.model("echo")
    table = shown(model)

    assert "echo, version 1, SERVING: x: FP32[batch, 3, 4, 4] → " in table.caption
    row = ["cpu", "1", "fp16", "plan-1", "ios", "1.00 ms", "1.50 ms", "1.50", "-"]
    assert table.rows[1:] == shown(model.schedules[0]).rows[1:] == [row]
    refused = shown(replace(model.schedules[0], promoted=False))
    assert refused.rows[1][4] == "ios (the sequential plan serves)"


def test_a_schedule_is_a_table_of_its_stages(server: FakeServer) -> None:
    with Client(server.address) as braid:
        found = braid.schedule("echo")
    table = shown(found)

    assert found == (found.schedule, found.graph)
    assert table.caption == "batch 1 on cpu: ios, 1.00 ms, sequential 1.50 ms"
    assert table.rows == [
        ["stage", "latency", "groups"],
        ["1", "400 us", "stem"],
        ["2", "600 us", "left | right → right_pool"],
    ]


def test_a_plan_without_stages_is_a_table_of_its_launches(server: FakeServer) -> None:
    server.schedule = {**server.schedule, "stages": []}
    with Client(server.address) as braid:
        table = shown(braid.schedule("echo"))

    assert table.rows[:3] == [
        ["position", "stream", "unit"],
        ["1", "0", "stem"],
        ["2", "1", "left"],
    ]


def test_a_job_says_how_far_it_is() -> None:
    job = Job("job-1", "echo", "2", JobState.PROFILING, 0.5, "measuring stages")

    assert shown(job).rows[1] == ["echo", "2", "PROFILING", "50%", "measuring stages"]
