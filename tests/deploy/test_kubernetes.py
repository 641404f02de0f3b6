"""Manifests of KServe and KubeRay against their schemas, Kubernetes', Ray's and our own."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from braid.server.settings import Settings
from tests.deploy.places import DEPLOY, shipped, unknown_settings

KUBERNETES = "v1.34.0"
SETS = ("StatefulSet", "Deployment")
Manifest = dict[str, Any]


def shipped_schema(name: str) -> Manifest:
    """A schema of Kubernetes that forbids unknown fields."""
    path = f"kubernetes-json-schema/{KUBERNETES}-local-strict/{name}.json"
    loaded: Manifest = json.loads(shipped("kubernetes_validate", path).read_text())
    return loaded


def definitions() -> Registry[Any]:
    """What the schemas refer to, under the two names that they use for it."""
    shared = Resource.from_contents(shipped_schema("_definitions"))
    names = ("/api/_definitions.json", "https://kubernetes.io/api/_definitions.json")
    return Registry().with_resources([(name, shared) for name in names])


def problems(manifest: Manifest) -> Iterator[str]:
    """What Kubernetes' own schema says of a manifest; unknown fields count."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    name = (
        f"{manifest['kind']}-{group.split('.')[0]}-{version}"
        if group
        else (f"{manifest['kind']}-{version}")
    )
    for error in Draft202012Validator(
        shipped_schema(name.lower()), registry=definitions()
    ).iter_errors(manifest):
        yield f"{manifest['kind']}: {'/'.join(map(str, error.path))}: {error.message}"


def pod_of(manifests: list[Manifest]) -> Manifest:
    (pod,) = [each["spec"]["template"]["spec"] for each in manifests if each["kind"] in SETS]
    assert isinstance(pod, dict)
    return pod


def attributes(model: str) -> dict[str, str]:
    """Field -> type of a class of KServe's API, as its own client package declares them."""
    source = ast.parse(shipped("kserve", f"models/{model}.py").read_text())
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(source)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("openapi_types", "attribute_map")
    }  # fmt: skip
    return {tables["attribute_map"][name]: kind for name, kind in tables["openapi_types"].items()}


def test_the_serving_runtime_has_only_fields_that_kserve_knows() -> None:
    runtime = yaml.safe_load((DEPLOY / "kserve/servingruntime.yaml").read_text())
    assert set(runtime) <= set(attributes("v1alpha1_serving_runtime"))
    assert set(runtime["spec"]) <= set(attributes("v1alpha1_serving_runtime_spec"))
    for each in runtime["spec"]["supportedModelFormats"]:
        assert set(each) <= set(attributes("v1alpha1_supported_model_format"))


def test_the_containers_of_the_serving_runtime_follow_the_schema_of_kubernetes() -> None:
    spec = yaml.safe_load((DEPLOY / "kserve/servingruntime.yaml").read_text())["spec"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": spec["containers"], "volumes": spec["volumes"]},
    }
    assert list(problems(pod)) == []
    (container,) = spec["containers"]
    assert not unknown_settings([each["name"] for each in container["env"]])


def test_the_serving_runtime_starts_a_server_with_flags_that_exist() -> None:
    from braid.server.cli.main import build_parser

    spec = yaml.safe_load((DEPLOY / "kserve/servingruntime.yaml").read_text())["spec"]
    arguments = [text.replace("{{.Name}}", "squeezenet") for text in spec["containers"][0]["args"]]
    assert build_parser().parse_args(arguments).preload == "squeezenet=/mnt/models"


def test_the_inference_service_names_the_runtime_and_fields_that_kserve_knows() -> None:
    service = yaml.safe_load((DEPLOY / "kserve/inferenceservice.yaml").read_text())
    runtime = yaml.safe_load((DEPLOY / "kserve/servingruntime.yaml").read_text())
    model = service["spec"]["predictor"]["model"]
    assert set(service["spec"]["predictor"]) <= set(attributes("v1beta1_predictor_spec"))
    assert set(model) <= set(attributes("v1beta1_model_spec"))
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


FOLDER = DEPLOY / "kubernetes/ray"


def service() -> Manifest:
    loaded: Manifest = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())["spec"]
    return loaded


def cluster() -> Manifest:
    found: Manifest = service()["rayClusterConfig"]
    return found


def groups() -> dict[str, Manifest]:
    [nodes] = cluster()["workerGroupSpecs"]
    return {"head": cluster()["headGroupSpec"], "nodes": nodes}


def application() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(service()["serveConfigV2"])
    return loaded


def test_kustomize_names_files_that_are_there() -> None:
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]

    assert {*named, "kustomization.yaml"} == {file.name for file in FOLDER.iterdir()}


@pytest.mark.parametrize("file", ["namespace.yaml", "redis.yaml", "service.yaml"])
def test_what_is_beside_the_cluster_follows_the_schema_of_kubernetes(file: str) -> None:
    for manifest in yaml.safe_load_all((FOLDER / file).read_text()):
        assert list(problems(manifest)) == []


@pytest.mark.parametrize("group", ["head", "nodes"])
def test_pods_follow_the_schema_of_kubernetes_and_are_confined(group: str) -> None:
    template = groups()[group]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {"name": "x", **template["metadata"]}

    assert list(problems(pod)) == []
    [container] = template["spec"]["containers"]
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not unknown_settings([each["name"] for each in container.get("env", ())])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
def test_the_application_is_what_braid_ray_deploy_prints_and_what_ray_takes() -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    from ray.serve.schema import ServeDeploySchema

    from braid.server.ray.application import Nodes, configuration

    written = application()
    [scaled] = written["applications"][0]["deployments"]
    bounds = [scaled["autoscaling_config"][f"{name}_replicas"] for name in ("min", "max")]

    assert written == configuration(written["applications"][0]["args"], Nodes(*bounds))
    ServeDeploySchema.model_validate(written)


def test_there_are_as_many_pods_as_nodes_may_be_and_one_on_a_machine() -> None:
    nodes = groups()["nodes"]
    [scaled] = application()["applications"][0]["deployments"]

    assert nodes["minReplicas"] == scaled["autoscaling_config"]["min_replicas"]
    assert nodes["maxReplicas"] == scaled["autoscaling_config"]["max_replicas"]
    assert cluster()["enableInTreeAutoscaling"]
    affinity = nodes["template"]["spec"]["affinity"]["podAntiAffinity"]
    [rule] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert nodes["template"]["spec"]["terminationGracePeriodSeconds"] > float(
        scaled["graceful_shutdown_timeout_s"]
    )


def test_each_worker_may_be_a_node_and_the_head_may_not() -> None:
    resources = {
        name: json.loads(shlex.split(group["rayStartParams"]["resources"])[0])
        for name, group in groups().items()
    }

    assert resources == {"head": {}, "nodes": {"braid": 1}}


def test_braid_starts_ray_so_that_serve_has_its_variables() -> None:
    metadata = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())["metadata"]
    assert metadata["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    for group in groups().values():
        [container] = group["template"]["spec"]["containers"]
        [command] = container["args"]
        assert re.search(r"braid ray start -- \$\{KUBERAY_GEN_RAY_START_CMD#ray start\}", command)


def test_the_head_may_die_as_redis_remembers_on_a_disk() -> None:
    redis, stateful = yaml.safe_load_all((FOLDER / "redis.yaml").read_text())
    options = cluster()["gcsFaultToleranceOptions"]
    host, _, port = options["redisAddress"].partition(":")
    [container] = stateful["spec"]["template"]["spec"]["containers"]

    assert host == redis["metadata"]["name"]
    assert int(port) == redis["spec"]["ports"][0]["port"]
    assert options["redisPassword"] == {"valueFrom": container["env"][0]["valueFrom"]}
    assert "--appendonly yes" in container["args"][0]
    assert stateful["spec"]["volumeClaimTemplates"]


def test_settings_of_nodes_make_a_fleet_and_hold_no_secret() -> None:
    [container] = groups()["nodes"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    given = application()["applications"][0]["args"]

    read = Settings(**given, database_password_file=environment["BRAID_DATABASE_PASSWORD_FILE"])
    assert read.is_fleet
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    for name in ("BRAID_ADMIN_TOKEN_FILE", "BRAID_DATABASE_PASSWORD_FILE"):
        assert environment[name].rpartition("/")[0] in mounts


def test_services_and_monitors_name_ports_that_exist() -> None:
    [container] = groups()["nodes"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for manifest in yaml.safe_load_all((FOLDER / "service.yaml").read_text()):
        for port in manifest["spec"]["ports"]:
            assert ports[port["name"]] == port["port"]
    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports.keys()
    assert application()["grpc_options"]["port"] == ports["grpc"]
