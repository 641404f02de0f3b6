import pytest
import yaml

pytest.importorskip("ray")

from ray.serve.schema import ServeDeploySchema

from braid.core.errors import StartupError
from braid.server.cli.main import main
from braid.server.ray.application import RELEASE, Nodes, build, configuration

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
