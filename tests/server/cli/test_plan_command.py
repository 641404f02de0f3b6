import json
from pathlib import Path
from typing import Any

import pytest

from braid.scheduler.options import PLANNERS
from braid.server.cli.main import main
from tests.scheduler.networks import FIRE_WITH_BYPASS, INCEPTION_E


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(edges: list[list[int]], latency_us: list[float] | None = None) -> str:
        operators = [
            # A unit without predecessors reads the block's input, which is external: id 0.
            {
                "id": 10 + unit,
                "name": f"op{unit}",
                "inputs": [10 + p for p in row] or [0],
                "latency_us": latency_us[unit] if latency_us else 1.0 + unit % 3,
            }
            for unit, row in enumerate(edges)
        ]
        path = tmp_path / "graph.json"
        path.write_text(json.dumps({"operators": operators, "group_overhead_us": 0.5}))
        return str(path)

    return write


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", *argv, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_table_1_comes_out_of_the_command(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    unpruned = ("--max-groups", "0", "--max-group-ops", "0")
    graph = write(INCEPTION_E)

    code = report(capsys, graph, "--single-root", *unpruned)["counts"]
    text = report(capsys, graph, *unpruned)["counts"]

    assert (code["operators"], code["width"]) == (11, 6)
    assert (code["transitions"], code["schedules"]) == (4_871, 3_757_392)
    assert (text["transitions"], text["schedules"]) == (5_040, 4_410_136)
    fire = report(capsys, write(FIRE_WITH_BYPASS), "--single-root", *unpruned)["counts"]
    assert (fire["transitions"], fire["schedules"]) == (51, 131)


@pytest.mark.parametrize("planner", PLANNERS)
def test_each_planner_reports_what_the_design_says(
    planner: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = report(capsys, write(INCEPTION_E), "--planner", planner)

    assert printed["planner"] == planner
    assert printed["sequential_us"] == sum(1.0 + unit % 3 for unit in range(11))
    assert printed["latency_us"] <= printed["sequential_us"]
    assert {"operators", "width", "stages_measured", "search_seconds"} <= set(printed["counts"])
    if "stages" in printed:
        listed = [unit for stage in printed["stages"] for group in stage for unit in group]
    else:
        listed = [unit for stream in printed["streams"] for unit in stream]
        assert sorted(printed["launch_order"]) == sorted(listed)
    assert sorted(listed) == list(range(10, 21))


def test_the_predicted_latency_is_that_of_the_stages(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = report(capsys, write([[], [0], [0], [1, 2]], [1.0, 5.0, 4.0, 1.0]))

    assert printed["stages"] == [[[10]], [[11], [12]], [[13]]]
    assert printed["latency_us"] == pytest.approx(1 + 5 + 0.5 + 1)


def test_lazy_ios_takes_a_gap_in_per_cent(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    printed = report(capsys, write(INCEPTION_E), "--planner", "lazy-ios", "--gap", "1%")

    assert printed["options"].endswith("gap=0.01)")
    assert printed["gap"] <= 0.01


def test_without_json_the_stages_are_listed_by_name(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", write([[], [0], [0], [1, 2]], [1.0, 5.0, 4.0, 1.0])]) == 0

    assert "stage   2: op1 | op2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"nonsense", b"\xff\xfe\xff", b'{"operators": [{"id": 1, "inputs": [1]}]}', None]
)
def test_a_bad_graph_is_one_line_on_stderr(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)

    assert main(["plan", str(path)]) == 1

    assert capsys.readouterr().err.startswith("braid plan: ")


def test_bad_limits_are_refused(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", write([[]]), "--max-groups", "-1"]) == 1
    assert "at least 1" in capsys.readouterr().err
