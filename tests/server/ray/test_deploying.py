from typing import Any

import pytest

pytest.importorskip("ray")

from braid.server.cli.local.ray import _as_many_nodes
from braid.server.ray.deploying import _wanted


def test_nodes_wanted_before_are_found_in_what_ray_serve_says() -> None:
    deployed: Any = {"braid": {"deployments": {"Node": {"target_num_replicas": 3}}}}

    assert _wanted(deployed) == 3
    assert _wanted({"braid": {"deployments": {}}}) == 0
    assert _wanted({}) == 0


def test_a_machine_that_is_away_takes_no_node_from_the_fleet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _as_many_nodes(machines=2, wanted=3) == 3
    assert "2" in capsys.readouterr().out
    assert _as_many_nodes(machines=3, wanted=2) == 3
    assert _as_many_nodes(machines=3, wanted=0) == 3
