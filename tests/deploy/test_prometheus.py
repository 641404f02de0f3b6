"""Prometheus: its own tools on our configuration, and a real one on a running server."""

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest
import yaml
from prometheus_client import generate_latest

from braid.server.observability.metrics import Metrics
from tests.clock import until
from tests.deploy.places import DEPLOY, program
from tests.deploy.test_grafana import FLEET, NAMES, expressions
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess, free_port

FOLDER = DEPLOY / "prometheus"


def promtool(*arguments: object) -> str:
    """Run promtool; its output if it is content."""
    command = [program("promtool", "prometheus"), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", ["prometheus.yml", "fleet.yml"])
def test_the_configuration_is_valid(name: str) -> None:
    assert "SUCCESS: 2 rule files found" in promtool("check", "config", FOLDER / name)


def test_rules_and_alerts_do_what_their_tests_say() -> None:
    promtool("test", "rules", *sorted((FOLDER / "tests").glob("*.yml")))


def test_every_alert_has_a_test_and_a_page_in_the_runbook() -> None:
    alerts = {
        rule["alert"]
        for group in yaml.safe_load((FOLDER / "rules/alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    }
    tested = (FOLDER / "tests/alerts_test.yml").read_text()
    assert {name for name in alerts if f"alertname: {name}\n" not in tested} == set()
    runbook = (DEPLOY.parent / "docs/operations.md").read_text()
    assert {name for name in alerts if f"### {name}\n" not in runbook} == set()


def test_what_the_server_exposes_is_well_formed() -> None:
    command = [program("promtool", "prometheus"), "check", "metrics"]
    metrics = Metrics()
    metrics.add_model("a", 1).request_ended("OK", 0.01)
    ran = subprocess.run(
        command,
        input=generate_latest(metrics.registry),
        capture_output=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in ran.stdout.decode().splitlines() if line.startswith("braid_")]
    assert complaints == []


class Prometheus:
    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self.address}{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Any]:
        """Samples that are numbers, now."""
        found = self.get("/api/v1/query", query=expression)["result"]
        return [sample for sample in found if sample["value"][1] != "NaN"]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Our configuration, with the target of this test and seconds instead of minutes."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(FOLDER / "rules/*.yml")]
    config["scrape_configs"] = [
        {**scrape, "scrape_timeout": "500ms", "static_configs": [{"targets": [target]}]}
        for scrape in config["scrape_configs"]
        if scrape["job_name"] == "braid"
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus", "prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(timeout=20)


def eventually(what: Callable[[], Any], why: Callable[[], object] = str) -> Any:
    """The first true answer of what cannot be reached at first."""

    def look() -> Any:
        with contextlib.suppress(OSError):
            return what()

    return until(look, why=why)


def for_grafana(expression: str) -> str:
    """A query as Grafana sends it, with every variable at All."""
    expression = expression.replace("$__rate_interval", "1m")
    return re.sub(r'"\$(\w+)"', '".*"', expression)


@pytest.mark.slow
def test_a_real_prometheus_answers_every_query_of_the_dashboards(tmp_path: Path) -> None:
    program("prometheus", "prometheus")
    with ServerProcess(tmp_path / "store").start() as server:
        target = server.http_address
        with prometheus(tmp_path, target) as scraper, server.client() as client:
            client.register("cnn", small_cnn(tmp_path / "cnn.onnx"), batch_sizes=[1, 4], wait=True)
            row = np.zeros((1, 3, 16, 16), np.float32)
            eventually(lambda: scraper.query('up{job="braid"} == 1'))

            queries = [
                for_grafana(expression)
                for name in NAMES
                if name != FLEET
                for expression in expressions(name)
            ]

            def unanswered() -> list[str]:
                return [query for query in queries if not scraper.query(query)]

            def load_and_ask() -> bool:
                for _ in range(20):
                    client.infer("cnn", {"x": row})
                return not unanswered()

            eventually(load_and_ask, why=unanswered)
            rules = scraper.get("/api/v1/rules")["groups"]
            unhealthy = [r for g in rules for r in g["rules"] if r.get("lastError")]
            assert unhealthy == []
