"""docker-compose.fleet.yml beside our settings and the files of its services; see test_compose."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from braid.server.settings import PREFIX, Settings
from tests import ROOT
from tests.deploy.haproxy import FILE as HAPROXY
from tests.deploy.places import DEPLOY, unknown_settings

COMPOSE = ROOT / "docker-compose.fleet.yml"
DOCUMENT: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())  # merge keys are resolved
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
NODES = ("node-1", "node-2")


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def settings_of(node: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings as the server of a node reads them."""
    for name, value in SERVICES[node]["environment"].items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_ours_is_built_with_what_a_fleet_needs_and_other_images_are_the_usual_ones() -> None:
    assert {SERVICES[name]["build"]["args"]["EXTRAS"] for name in NODES} == {"fleet"}
    usual = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("prometheus", "grafana"):
        assert SERVICES[name]["image"] == usual[name]["image"]


def test_only_nodes_reach_the_database_and_the_files() -> None:
    assert DOCUMENT["networks"]["store"]["internal"]
    members = {name for name, service in SERVICES.items() if "store" in service["networks"]}
    assert members == {*NODES, "postgres", "s3"}
    assert not any("ports" in SERVICES[name] for name in members)


def test_secrets_stand_in_files_that_git_ignores() -> None:
    files = [secret["file"] for secret in DOCUMENT["secrets"].values()]
    files += [file for service in SERVICES.values() for file in service.get("env_file", [])]
    assert {Path(file).parent for file in files} == {Path("deploy/secrets")}
    written = COMPOSE.read_text().split("x-confined")[0]
    assert all(Path(file).stem in written for file in files), "the head says how to make each"
    for service in SERVICES.values():
        assert set(service.get("secrets", [])) <= set(DOCUMENT["secrets"])
        for name, value in service.get("environment", {}).items():
            is_secret = re.search("TOKEN|PASSWORD|SECRET|KEY", name) is not None
            assert not is_secret or value.startswith("/run/secrets/"), name


@pytest.mark.parametrize("node", NODES)
def test_the_server_takes_the_settings_as_those_of_a_fleet(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not unknown_settings(list(SERVICES[node]["environment"]))

    settings = settings_of(node, monkeypatch)

    assert settings.is_fleet
    assert settings.files == "s3://braid/files"
    assert settings.node_address == f"{node}:{settings.grpc_port}"
    assert SERVICES[node]["hostname"] == node
    assert settings.max_caller_uploads == settings.max_concurrent_uploads
    assert settings.connection_memory_bytes == settings.calls_memory_bytes


def test_nodes_differ_in_name_address_and_cache_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (json.loads(json.dumps(SERVICES[node])) for node in NODES)
    for node in (first, second):
        for own in ("hostname", "volumes"):
            node.pop(own)
        node["environment"].pop(f"{PREFIX}NODE_ADDRESS")
    assert first == second


def test_database_bucket_and_ports_are_those_of_the_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of("node-1", monkeypatch)
    given = SERVICES["postgres"]["environment"]

    assert settings.database.get_secret_value() == (
        f"postgresql+psycopg://{given['POSTGRES_USER']}@postgres:5432/{given['POSTGRES_DB']}"
    )
    assert f"/{SERVICES['s3']['environment']['S3_BUCKET']}/" in settings.files
    assert SERVICES["node-1"]["environment"]["AWS_ENDPOINT_URL"] == "http://s3:8333"


def test_haproxy_and_prometheus_name_the_nodes_by_their_ports() -> None:
    for text in (HAPROXY.read_text(), (DEPLOY / "prometheus/fleet.yml").read_text()):
        assert set(re.findall(r"\b(node-\d):", text)) == set(NODES)
    servers = re.findall(r"server (\S+) (\S+):(\d+)", HAPROXY.read_text())
    assert {(name, host) for name, host, _ in servers} == {(node, node) for node in NODES}
    assert {int(port) for *_, port in servers} == {
        Settings.model_fields[name].default for name in ("grpc_port", "http_port")
    }
    mounted = [volume.split(":")[0] for volume in SERVICES["balancer"]["volumes"]]
    assert mounted == [f"./{HAPROXY.parent.relative_to(ROOT)}"]
    command = shlex.join(SERVICES["prometheus"]["command"])
    assert "--config.file=/etc/prometheus/fleet.yml" in command


def test_haproxy_notices_before_a_node_refuses_and_containers_wait_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of("node-1", monkeypatch)
    (interval, fall) = re.findall(r"inter (\d+)s fall (\d+)", HAPROXY.read_text())[0]
    (timeout,) = re.findall(r"timeout check (\d+)s", HAPROXY.read_text())

    assert settings.shutdown_delay_seconds >= int(interval) * int(fall) + int(timeout)
    grace = seconds(SERVICES["node-1"]["stop_grace_period"])
    assert grace > settings.shutdown_delay_seconds + settings.drain_seconds + 5
