"""The compose files, against compose's own schema, our settings and our own promises."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator

from braid.server.settings import PREFIX, Settings
from tests import ROOT
from tests.deploy.haproxy import FILE as HAPROXY
from tests.deploy.places import DEPLOY, shipped, unknown_settings

FLEET = "docker-compose.fleet.yml"
FILES = ("docker-compose.yml", "docker-compose.gpu.yml", FLEET)
WHOLE = (FILES[0], FLEET)
"""Those that are no override of another."""


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return loaded


@pytest.mark.parametrize("name", FILES)
def test_it_follows_the_compose_schema(name: str) -> None:
    schema = json.loads(shipped("compose", "config/compose_spec.json").read_text())

    Draft201909Validator(schema).validate(document(name))


@pytest.mark.parametrize("file", WHOLE)
def test_every_image_is_pinned_and_ours_are_built(file: str) -> None:
    for name, service in document(file)["services"].items():
        if "build" in service:
            assert (ROOT / service["build"]["context"] / "Dockerfile").exists()
        else:
            pinned = r":v?\d+\.\d[\d.]*(-alpine)?@sha256:[0-9a-f]{64}$"
            assert re.search(pinned, service["image"]), name


@pytest.mark.parametrize("file", WHOLE)
def test_every_service_is_confined_and_this_machine_only_reaches_it(file: str) -> None:
    services = document(file)["services"]
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "memory" in service["deploy"]["resources"]["limits"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert {name for name, service in services.items() if "cap_add" in service} <= {"s3"}


def test_what_triton_compiles_can_be_loaded() -> None:
    service = document("docker-compose.gpu.yml")["services"]["braid"]
    mounts = dict(mount.split(":") for mount in service["tmpfs"])

    options = mounts[service["environment"]["TRITON_CACHE_DIR"]].split(",")

    assert "exec" in options, "a tmpfs of Docker is noexec otherwise"
    assert "mode=1777" in options


@pytest.mark.parametrize("file", WHOLE)
def test_what_is_mounted_exists_and_named_volumes_are_declared(file: str) -> None:
    compose = document(file)
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            exists = (ROOT / source).exists() if source.startswith("./") else False
            assert exists or source in compose["volumes"], volume
        assert set(service.get("secrets", [])) <= set(compose["secrets"])


def test_the_admin_token_comes_from_a_secret_that_git_ignores() -> None:
    compose = document(FILES[0])
    assert compose["secrets"]["admin_token"]["file"] == "./deploy/secrets/admin_token"
    assert (ROOT / "deploy/secrets/.gitignore").read_text().startswith("*\n")
    environment = compose["services"]["braid"]["environment"]
    assert environment["BRAID_ADMIN_TOKEN_FILE"] == "/run/secrets/admin_token"
    assert not any("TOKEN" in name and not name.endswith("_FILE") for name in environment)


@pytest.mark.parametrize("name", FILES)
def test_the_server_reads_every_variable_that_is_set(name: str) -> None:
    for service in document(name)["services"].values():
        assert not unknown_settings(list(service.get("environment", {})))


def test_without_the_override_no_gpu_is_asked_for_and_with_it_one_is() -> None:
    assert "nvidia" not in (ROOT / FILES[0]).read_text().replace("NVIDIA", "")
    devices = document(FILES[1])["services"]["braid"]["deploy"]["resources"]["reservations"]
    assert devices["devices"] == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_a_container_gets_longer_to_stop_than_requests_to_drain() -> None:
    from braid.server.settings import Settings

    grace = document(FILES[0])["services"]["braid"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings.model_fields["drain_seconds"].default


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
