"""The Helm chart: rendered by Helm itself, against Kubernetes' schemas and the kustomize base."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from braid_client.version import __version__
from tests.deploy.places import DEPLOY, unknown_settings
from tests.deploy.test_kubernetes import SETS, Manifest, pod_of, problems, written
from tests.deploy.test_kubernetes import rendered as kustomized

CHART = DEPLOY / "helm/braid"

# In a process of its own: Helm brings a Go runtime along, which takes over signals.
RENDER = """
import json, sys
import helm_python as helm
path, values = sys.argv[1], json.loads(sys.argv[2])
try:
    with helm.Chart.load(path) as chart:
        rendered = chart.render(values, name="braid", namespace="braid")
        print(json.dumps({"rendered": rendered, "lint": helm.lint(path, values, strict=True)}))
except helm.HelmError as error:
    print(json.dumps({"error": str(error)}))
"""

EVERYTHING: dict[str, Any] = {
    "gpu": {"enabled": True},
    "tls": {"secret": "certificate", "clientCaSecret": "clients"},
    "tokens": {"inferSecret": "braid-infer-token", "metricsSecret": "braid-metrics-token"},
    "monitor": {"enabled": True, "kind": "ServiceMonitor"},
    "autoscaling": {"enabled": True},
    "persistence": {"enabled": True, "storageClass": "fast"},
    "readyModels": ["resnet", "bert"],
    "modelRepository": {"claim": "braid-models"},
    "networkPolicy": {"rest": True},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "fast"},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "vision"},
    "extraArgs": ["--preload=squeezenet=/one"],
    "extraVolumes": [{"name": "one", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "one", "mountPath": "/one"}],
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
}
FLEET: dict[str, Any] = {
    "image": {"tag": "fleet"},
    "replicas": 2,
    "fleet": {
        "enabled": True,
        "database": "postgresql+psycopg://braid@postgres.example.com:5432/braid",
        "databaseSecret": "braid-database",
        "files": "s3://braid/files",
        "filesSecret": "braid-files",
    },
    "autoscaling": {"enabled": True, "minReplicas": 2, "cpuPercent": 80},
}
NOTHING: dict[str, Any] = {
    "tokens": {"adminSecret": ""},
    "persistence": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "settings": {},
}


def helm(values: dict[str, Any]) -> dict[str, Any]:
    """What Helm says of the chart with values: manifests and findings, or its error."""
    if find_spec("helm_python") is None:
        pytest.skip("Helm is not installed: pip install --no-deps -r tests/schemas.txt")
    command = [sys.executable, "-c", RENDER, str(CHART), json.dumps(values)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


@cache
def rendered(values: str = "{}") -> list[Manifest]:
    """What ``helm install`` would send, for values as JSON."""
    said = helm(json.loads(values))
    assert "error" not in said, said
    texts = [text for path, text in said["rendered"].items() if path.endswith(".yaml")]
    documents = (each for text in texts for each in yaml.safe_load_all(text))
    return [each for each in documents if each]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


@pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, NOTHING, FLEET, EVERYTHING | FLEET],
    ids=["usual", "all", "nothing", "fleet", "all of a fleet"],
)
def test_what_helm_renders_follows_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    manifests = rendered(json.dumps(values))

    kind = "Deployment" if "fleet" in values else "StatefulSet"
    assert [each["kind"] for each in manifests if each["kind"] in SETS] == [kind]
    for manifest in manifests:
        if manifest["kind"] not in ("PodMonitor", "ServiceMonitor"):
            assert list(problems(manifest)) == []
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("values", [EVERYTHING, FLEET], ids=["all", "fleet"])
def test_helm_finds_nothing_to_complain_of(values: dict[str, Any]) -> None:
    findings = helm(values)["lint"]
    assert findings["errors"] == []
    assert [each for each in findings["messages"] if each["severity"] > 1] == []


def test_the_usual_pod_is_that_of_the_kustomize_base() -> None:
    base, ours = pod_of(written()), pod_of(rendered())

    base["containers"][0]["image"] = "braid:cpu"  # kustomize sets the tag
    assert ours == base


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "NetworkPolicy", "StatefulSet"])
def test_what_surrounds_the_pods_is_that_of_the_base(kind: str) -> None:
    def plain(manifests: list[Manifest]) -> Any:
        """Without the labels, of which Helm has one more, and without the pod."""
        text = json.dumps(of_kind(manifests, kind)[0]["spec"])
        spec = json.loads(text.replace(', "app.kubernetes.io/instance": "braid"', ""))
        spec.pop("template", None)
        return spec

    assert plain(rendered()) == plain(written())


@pytest.mark.parametrize(
    "kind",
    ["Deployment", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler"],
)
def test_a_fleet_is_that_of_the_kustomize_variant(kind: str) -> None:
    def plain(manifests: list[Manifest]) -> Any:
        text = json.dumps(of_kind(manifests, kind)[0]["spec"])
        spec = json.loads(re.sub(r'(, )?"app.kubernetes.io/instance": "braid"(?(1)|, )', "", text))
        spec.pop("replicas", None)  # the autoscaler's
        spec.get("template", {}).pop("metadata", None)
        (container,) = spec.get("template", {"spec": {"containers": [{}]}})["spec"]["containers"]
        for source in container.get("envFrom", []):
            source.get("configMapRef", {}).pop("name", None)  # kustomize adds a digest
        return spec

    assert plain(rendered(json.dumps(FLEET))) == plain(kustomized("fleet"))


def test_settings_of_a_fleet_are_those_of_the_kustomize_variant() -> None:
    (ours,) = of_kind(rendered(json.dumps(FLEET)), "ConfigMap")
    (theirs,) = of_kind(kustomized("fleet"), "ConfigMap")
    assert ours["data"] == theirs["data"]


def test_a_pod_gets_as_long_to_end_as_its_server_takes() -> None:
    def grace(values: dict[str, Any]) -> int:
        return int(pod_of(rendered(json.dumps(values)))["terminationGracePeriodSeconds"])

    slow = {"settings": {"BRAID_DRAIN_SECONDS": "120", "BRAID_SHUTDOWN_DELAY_SECONDS": "7.5"}}
    assert (grace({}), grace(FLEET), grace(slow)) == (45, 55, 143)
    assert grace({"terminationGracePeriodSeconds": 300}) == 300


def test_settings_are_those_that_the_server_reads_and_those_of_the_base() -> None:
    (usual,) = of_kind(rendered(), "ConfigMap")
    (full,) = of_kind(rendered(json.dumps(EVERYTHING)), "ConfigMap")
    base = yaml.safe_load((DEPLOY / "kubernetes/base/kustomization.yaml").read_text())
    literals = base["configMapGenerator"][0]["literals"]

    assert usual["data"] == dict(each.split("=", 1) for each in literals)
    assert full["data"]["BRAID_READY_MODELS"] == "resnet,bert"
    assert full["data"]["BRAID_DEVICES"] == "cuda:0"
    mounts = pod_of(rendered(json.dumps(EVERYTHING)))["containers"][0]["volumeMounts"]
    assert full["data"]["BRAID_MODEL_REPOSITORY"] in {each["mountPath"] for each in mounts}
    (container,) = pod_of(rendered(json.dumps(EVERYTHING)))["containers"]
    assert not unknown_settings([*full["data"], *(each["name"] for each in container["env"])])


def test_a_gpu_is_asked_for_where_it_is_wanted_only() -> None:
    usual, full = (pod_of(rendered(json.dumps(values))) for values in ({}, EVERYTHING))

    assert full["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert full["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "nvidia.com/gpu" not in json.dumps(usual)


def test_with_tls_probes_ask_over_https_and_every_file_named_is_mounted() -> None:
    pod = pod_of(rendered(json.dumps(EVERYTHING)))
    (container,) = pod["containers"]

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert len(mounts) == len(container["volumeMounts"])
    volumes = {each["name"] for each in pod["volumes"]} | {"store"}
    assert set(mounts.values()) <= volumes
    for variable in container["env"]:
        assert any(variable["value"].startswith(f"{path}/") for path in mounts), variable


def test_monitors_find_pods_or_the_service_of_the_replicas() -> None:
    (service_monitor,) = of_kind(rendered(json.dumps(EVERYTHING)), "ServiceMonitor")
    selector = service_monitor["spec"]["selector"]["matchLabels"].items()
    services = of_kind(rendered(json.dumps(EVERYTHING)), "Service")
    found = [each for each in services if selector <= each["metadata"]["labels"].items()]
    assert [each["metadata"]["name"] for each in found] == ["braid-replicas"]
    ports = {port["name"] for port in found[0]["spec"]["ports"]}
    assert {each["port"] for each in service_monitor["spec"]["endpoints"]} <= ports
    credentials = {"name": "braid-metrics-token", "key": "token"}
    for endpoint in service_monitor["spec"]["endpoints"]:
        assert endpoint["authorization"] == {"credentials": credentials}

    manifests = rendered(json.dumps({"monitor": {"enabled": True}}))
    (pod_monitor,) = of_kind(manifests, "PodMonitor")
    labels = of_kind(manifests, "StatefulSet")[0]["spec"]["template"]["metadata"]["labels"]
    assert pod_monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replica": 3}, "replica"),
        ({"settings": {"GRPC_PORT": "1"}}, "GRPC_PORT"),
        ({"settings": {"BRAID_HOST": "::"}}, "the chart sets it"),
        ({"tls": {"clientCaSecret": "clients"}}, "/tls/secret"),
        ({"readyModels": ["a,b"]}, "/readyModels/0"),
        ({"monitor": {"kind": "Monitor"}}, "/monitor/kind"),
        ({"fleet": {"enabled": True, "files": "s3://x"}}, "/fleet/database"),
        ({"fleet": {"database": "postgresql://braid:word@host/braid"}}, "/fleet/database"),
        ({"settings": {"BRAID_DATABASE": "postgresql://host/braid"}}, "the chart sets it"),
        ({"terminationGracePeriodSeconds": 20}, "the server takes up to 35"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], reason: str) -> None:
    assert reason in helm(values)["error"]


def test_the_chart_has_the_version_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
