import json
import re
import runpy
from typing import Any

import pytest
import yaml

from braid.server.fleet.metrics import FileMetrics, FollowMetrics, NodeMetrics
from braid.server.observability.metrics import Metrics, tell_build
from tests.deploy.places import DEPLOY

FLEET = "fleet.json"  # series that servers have where they share a database
NAMES = ("services.json", "schedules.json", FLEET)
FUNCTIONS = {
    *("sum", "by", "rate", "max", "min", "avg", "histogram_quantile", "increase", "delta", "on"),
    *("group_left", "vector", "and", "or", "unless"),
    *("count", "changes"),
}


def dashboard(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards" / name).read_text())
    return loaded


def expressions(name: str) -> list[str]:
    return [target["expr"] for panel in dashboard(name)["panels"] for target in panel["targets"]]


def known_series() -> set[str]:
    """Names that the server exposes or that a recording rule makes."""
    names, registry = set(), Metrics().registry
    for series in (NodeMetrics, FollowMetrics, FileMetrics):
        series(registry)
    tell_build(registry)
    for family in registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    rules = yaml.safe_load((DEPLOY / "prometheus/rules/recording.yml").read_text())
    names |= {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    return names


def series_in(expression: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|on|group_left)\s*\([^)]*\)", " ", expression)
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", bare)) - FUNCTIONS


def test_the_committed_dashboards_are_what_the_script_writes() -> None:
    written = runpy.run_path(str(DEPLOY / "grafana/dashboards.py"))["DASHBOARDS"]

    assert set(written) == set(NAMES)
    for name in NAMES:
        assert dashboard(name) == written[name], "run python deploy/grafana/dashboards.py"


@pytest.mark.parametrize("name", NAMES)
def test_every_query_names_series_that_exist(name: str) -> None:
    for expression in expressions(name):
        assert series_in(expression), expression
        assert series_in(expression) <= known_series(), expression


def test_alerts_and_rules_name_series_that_exist() -> None:
    for file in ("recording.yml", "alerts.yml"):
        rules = yaml.safe_load((DEPLOY / "prometheus/rules" / file).read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                assert series_in(rule["expr"]) <= known_series() | {"up"}, rule["expr"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_neither_overlap_nor_leave_the_grid(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(name)["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(0 <= x < 24 for x, _ in cells)
        taken |= cells


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_in_a_query_is_declared(name: str) -> None:
    declared = {variable["name"] for variable in dashboard(name)["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(dashboard(name)["panels"])))
    assert used <= declared


def test_provisioning_points_to_what_compose_mounts() -> None:
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/braid.yml").read_text())
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    mounts = compose["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['providers'][0]['options']['path']}:ro" in mounts
