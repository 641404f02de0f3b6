import json
from pathlib import Path

from benchmarks.environment import describe
from benchmarks.reports import write_report


def test_a_report_with_its_environment_tells_the_distance_of_cores_twice(tmp_path: Path) -> None:
    environment = describe()
    facts = {"cores", "nearest_ns", "farthest_ns"}

    write_report(tmp_path / "report.json", {"environment": environment, "rows": []})

    written = json.loads((tmp_path / "report.json").read_text())["environment"]
    assert set(written["core_distance"]) == set(written["core_distance_at_end"]) == facts
    assert "core_distance_at_end" not in environment
