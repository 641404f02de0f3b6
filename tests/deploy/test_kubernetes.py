"""Kubernetes manifests: against the schemas of Kubernetes itself, and against our own promises."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from braid.server.settings import Settings
from tests.deploy.places import DEPLOY, program, shipped, unknown_settings

KUBERNETES = "v1.34.0"
FOLDER = DEPLOY / "kubernetes"
SETS = ("StatefulSet", "Deployment")
Manifest = dict[str, Any]


def rendered(variant: str) -> list[Manifest]:
    """What ``kubectl apply -k`` would send."""
    ran = subprocess.run(
        [program("kubectl", "kubectl"), "kustomize", str(FOLDER / variant)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return list(yaml.safe_load_all(ran.stdout))


def written() -> list[Manifest]:
    """The base as written, without kustomize."""
    files = sorted((FOLDER / "base").glob("*.yaml"))
    documents = (each for path in files for each in yaml.safe_load_all(path.read_text()))
    return [each for each in documents if each["kind"] not in ("Kustomization", "PodMonitor")]


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


@pytest.mark.parametrize("manifest", written(), ids=lambda each: each["kind"])
def test_each_manifest_follows_the_schema_of_kubernetes(manifest: Manifest) -> None:
    assert list(problems(manifest)) == []


def test_the_schema_would_notice_a_mistake() -> None:
    (stateful,) = [each for each in written() if each["kind"] == "StatefulSet"]
    stateful["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}

    assert any("readynessProbe" in text for text in problems(stateful))


@pytest.mark.parametrize("variant", ["base", "gpu", "models", "fleet"])
def test_kustomize_renders_manifests_that_follow_the_schemas(variant: str) -> None:
    manifests = rendered(variant)

    kinds = {each["kind"] for each in manifests}
    wanted = "Deployment" if variant == "fleet" else "StatefulSet"
    assert [kind for kind in kinds if kind in SETS] == [wanted]
    assert {"Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor",
            "HorizontalPodAutoscaler", "ConfigMap", "ServiceAccount"} <= kinds  # fmt: skip
    for manifest in manifests:
        if manifest["kind"] != "PodMonitor":
            assert list(problems(manifest)) == []
    settings = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
    assert not unknown_settings([name for data in settings for name in data])


def test_the_gpu_variant_asks_for_one_gpu_and_the_other_for_none() -> None:
    limits = {
        variant: pod_of(rendered(variant))["containers"][0]["resources"]["limits"]
        for variant in ("base", "gpu")
    }
    assert limits["gpu"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu" not in limits["base"]


def test_the_variant_with_a_repository_mounts_what_the_setting_names() -> None:
    manifests = rendered("models")
    (settings,) = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
    pod = pod_of(manifests)
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    mount = mounts[settings["BRAID_MODEL_REPOSITORY"]]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert mount["readOnly"]
    assert volume["persistentVolumeClaim"]["readOnly"]


def test_the_fleet_keeps_nothing_in_its_pods_and_reaches_what_it_shares() -> None:
    manifests = rendered("fleet")
    (deployment,) = [each for each in manifests if each["kind"] == "Deployment"]
    (settings,) = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
    pod = pod_of(manifests)
    (container,) = pod["containers"]

    assert deployment["spec"]["replicas"] > 1
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert not any("persistentVolumeClaim" in each for each in volumes.values())
    assert "volumeClaimTemplates" not in deployment["spec"]
    cache_gib = float(volumes["store"]["emptyDir"]["sizeLimit"].removesuffix("Gi"))
    assert float(settings["BRAID_MAX_CACHE_BYTES"].removesuffix("GiB")) < cache_gib
    environment = {each["name"]: each.get("value") for each in container["env"]}
    read = Settings(
        database=settings["BRAID_DATABASE"],
        database_password_file=environment["BRAID_DATABASE_PASSWORD_FILE"],
        files=settings["BRAID_FILES"],
    )
    assert read.is_fleet
    assert str(read.database_password_file).startswith("/run/secrets/braid-database/")
    delays = [float(settings[f"BRAID_{name}_SECONDS"]) for name in ("SHUTDOWN_DELAY", "DRAIN")]
    assert pod["terminationGracePeriodSeconds"] > sum(delays) + 5
    (policy,) = [each["spec"] for each in manifests if each["kind"] == "NetworkPolicy"]
    ports = {each["port"] for rule in policy["egress"] for each in rule["ports"]}
    assert {5432, 443, 53} == ports


def test_the_autoscaler_of_the_fleet_scales_the_deployment_by_waiting_and_by_cpu() -> None:
    (scaler,) = [each for each in rendered("fleet") if each["kind"] == "HorizontalPodAutoscaler"]

    assert scaler["spec"]["scaleTargetRef"]["kind"] == "Deployment"
    assert [each["type"] for each in scaler["spec"]["metrics"]] == ["Pods", "Resource"]
    assert "cpu" in pod_of(rendered("fleet"))["containers"][0]["resources"]["requests"]


def test_pods_are_confined_as_the_restricted_standard_wants() -> None:
    pod = pod_of(written())
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_probes_ask_the_health_service_by_names_that_it_knows() -> None:
    (container,) = pod_of(written())["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        grpc = container[probe]["grpc"]
        assert grpc["port"] == Settings.model_fields["grpc_port"].default
        assert grpc.get("service", "") in ("", "liveness")
    assert container["readinessProbe"]["grpc"].get("service", "") == ""


def test_a_pod_gets_longer_to_stop_than_requests_to_drain() -> None:
    assert pod_of(written())["terminationGracePeriodSeconds"] > 30 + 5


def test_the_pod_monitor_and_the_autoscaler_name_what_exists() -> None:
    monitor = yaml.safe_load((FOLDER / "base/podmonitor.yaml").read_text())
    (container,) = pod_of(written())["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert set(monitor["spec"]) == {"selector", "podMetricsEndpoints"}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports

    adapter = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    scaler = yaml.safe_load((FOLDER / "base/horizontalpodautoscaler.yaml").read_text())
    assert scaler["spec"]["metrics"][0]["pods"]["metric"]["name"] == adapter[0]["name"]["as"]
    rules = (DEPLOY / "prometheus/rules/recording.yml").read_text()
    assert re.match(r"[\w:]+", adapter[0]["seriesQuery"])[0] in rules  # type: ignore[index]


# KServe.


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
