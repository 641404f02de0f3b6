"""The compose files, against compose's own schema and our own promises."""

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator

from tests import ROOT
from tests.deploy.places import shipped, unknown_settings

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
