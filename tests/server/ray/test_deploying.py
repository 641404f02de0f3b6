"""The application that is deployed on Ray Serve, and what it needs of its environment."""

from typing import Any

import pytest
import yaml
from pydantic import ByteSize
from ray.serve.schema import ServeDeploySchema

from braid.core.errors import StartupError
from braid.server.cli.local.ray import _as_many_nodes
from braid.server.cli.main import main
from braid.server.ray.application import RELEASE, Nodes, build, configuration
from braid.server.ray.deploying import _wanted
from braid.server.ray.environment import missing, needed, with_braid
from braid.server.settings import Settings


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


FLEET = {"database": "postgresql+psycopg://braid@db/braid", "files": "s3://braid/files"}


def test_ray_serve_takes_the_configuration() -> None:
    made = configuration({**FLEET, RELEASE: "1"}, Nodes(1, 3))

    [application] = ServeDeploySchema.model_validate(made).applications
    [node] = application.deployments
    assert application.args == {**FLEET, RELEASE: "1"}
    assert node.max_replicas_per_node == 1
    assert node.ray_actor_options.resources == {"braid": 1}


def test_as_many_nodes_as_asked_for_do_not_scale() -> None:
    [deployment] = configuration(FLEET, Nodes(3, 3))["applications"][0]["deployments"]

    assert deployment["num_replicas"] == 3
    assert "autoscaling_config" not in deployment


def test_another_release_replaces_nodes_and_is_no_setting() -> None:
    application = build({**FLEET, RELEASE: "2"})

    assert application._bound_deployment.init_args == (FLEET,)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"database": "postgresql+psycopg://braid:secret@db/braid", "files": "s3://b/f"}, "secret"),
        ({"admin_token": "long enough for a token"}, "secret"),
        ({"node_name": "one"}, "differ"),
        ({"no_setting": "1"}, "--no-setting"),
        ({"files": "s3://braid/files"}, "BRAID_DATABASE"),
    ],
)
def test_wrong_settings_are_refused_before_ray_sees_them(args: dict[str, str], named: str) -> None:
    with pytest.raises(StartupError, match=named) as refused:
        configuration(args, Nodes(1, 1))
    assert "secret@" not in str(refused.value)


def test_bounds_are_checked() -> None:
    with pytest.raises(StartupError, match="ascending"):
        Nodes(3, 2)


def test_the_command_prints_the_same_file(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--database", FLEET["database"], "--files", FLEET["files"]]

    assert main(["ray", "deploy", "--print", "--nodes", "3", *flags]) == 0

    printed = yaml.safe_load(capsys.readouterr().out)
    assert ServeDeploySchema.model_validate(printed)
    assert printed["applications"][0]["deployments"][0]["num_replicas"] == 3


@pytest.fixture
def settings() -> Settings:
    return Settings(max_message_bytes=ByteSize(1 << 20))


def test_what_braid_starts_lacks_nothing(settings: Settings) -> None:
    assert missing(settings, with_braid(settings, {}, threads=4)) == ""


@pytest.mark.parametrize("name", [*needed(Settings()), "RAY_SERVE_HAPROXY_BINARY_PATH"])
def test_each_variable_is_named_when_it_is_missing(settings: Settings, name: str) -> None:
    environment = with_braid(settings, {}, threads=4)
    del environment[name]

    line = missing(settings, environment)

    assert name in line
    assert "\n" not in line
    assert not any(other in line for other in environment)


def test_a_wrong_value_is_missing_too(settings: Settings) -> None:
    environment = with_braid(settings, {}, threads=4) | {"RAY_SERVE_ENABLE_HA_PROXY": "0"}

    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in missing(settings, environment)


def test_an_operators_number_of_threads_stays_but_not_a_wrong_window(settings: Settings) -> None:
    window = "RAY_SERVE_HAPROXY_H2_FE_INITIAL_WINDOW_SIZE"
    own = {"RAY_SERVE_HAPROXY_NBTHREAD": "1", window: "65536", "HOME": "/root"}

    made = with_braid(settings, own, threads=4)

    assert made["RAY_SERVE_HAPROXY_NBTHREAD"] == "1"
    assert made["HOME"] == "/root"
    assert made[window] == str(4 << 20)
