from pathlib import Path

import pytest

from benchmarks.fleet import demo
from tests.deploy.places import program
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def test_the_demo_says_in_ten_lines_what_happened(
    machines: Path, postgres_server: Postgres, s3_server: S3
) -> None:
    program("haproxy", "haproxy")

    lines = list(demo.run(machines / "demo", postgres_server, s3_server))

    assert len(lines) == 10
    assert lines[2].startswith("3 of 3 nodes answer it")
    assert "it measured 0 schedules" in lines[6]
    assert " 0 errors, 0 schedules measured" in lines[7]
    assert "nothing failed that may not" in lines[-1]
