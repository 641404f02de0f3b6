"""The Helm chart: rendered by Helm itself, against Kubernetes' schemas and our own promises."""

import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from braid.server.settings import Settings
from braid_client.version import __version__
from tests.deploy.places import DEPLOY, unknown_settings
from tests.deploy.test_kubernetes import SETS, Manifest, pod_of, problems

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


def test_pods_are_confined_as_the_restricted_standard_wants() -> None:
    pod = pod_of(rendered())
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
    (container,) = pod_of(rendered())["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        grpc = container[probe]["grpc"]
        assert grpc["port"] == Settings.model_fields["grpc_port"].default
        assert grpc.get("service", "") in ("", "liveness")
    assert container["readinessProbe"]["grpc"].get("service", "") == ""


def test_a_fleet_keeps_nothing_in_its_pods_and_reaches_what_it_shares() -> None:
    manifests = rendered(json.dumps(FLEET))
    ((deployment,), (config,), (policy,)) = (
        of_kind(manifests, kind) for kind in ("Deployment", "ConfigMap", "NetworkPolicy")
    )
    settings, pod = config["data"], pod_of(manifests)
    (container,) = pod["containers"]

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
    ports = {each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]}
    assert {5432, 443, 53} == ports


def test_the_autoscaler_scales_by_a_metric_that_the_adapter_makes_and_by_cpu() -> None:
    manifests = rendered(json.dumps(FLEET))
    (scaler,) = of_kind(manifests, "HorizontalPodAutoscaler")
    adapter = yaml.safe_load((DEPLOY / "kubernetes/prometheus-adapter.yaml").read_text())
    (made,) = adapter["rules"]["custom"]

    assert scaler["spec"]["scaleTargetRef"]["kind"] == "Deployment"
    assert [each["type"] for each in scaler["spec"]["metrics"]] == ["Pods", "Resource"]
    assert scaler["spec"]["metrics"][0]["pods"]["metric"]["name"] == made["name"]["as"]
    recorded = re.match(r"[\w:]+", made["seriesQuery"])
    assert recorded is not None
    assert recorded[0] in (DEPLOY / "prometheus/rules/recording.yml").read_text()
    assert "cpu" in pod_of(manifests)["containers"][0]["resources"]["requests"]


def test_a_pod_gets_as_long_to_end_as_its_server_takes() -> None:
    def grace(values: dict[str, Any]) -> int:
        return int(pod_of(rendered(json.dumps(values)))["terminationGracePeriodSeconds"])

    slow = {"settings": {"BRAID_DRAIN_SECONDS": "120", "BRAID_SHUTDOWN_DELAY_SECONDS": "7.5"}}
    assert (grace({}), grace(FLEET), grace(slow)) == (45, 55, 143)
    assert grace({"terminationGracePeriodSeconds": 300}) == 300


def test_settings_are_those_that_the_server_reads() -> None:
    (usual,) = of_kind(rendered(), "ConfigMap")
    (full,) = of_kind(rendered(json.dumps(EVERYTHING)), "ConfigMap")

    assert usual["data"]["BRAID_HOST"] == "0.0.0.0"
    assert not unknown_settings(list(usual["data"]))
    assert full["data"]["BRAID_READY_MODELS"] == "resnet,bert"
    assert full["data"]["BRAID_DEVICES"] == "cuda:0"
    (container,) = pod_of(rendered(json.dumps(EVERYTHING)))["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert mounts[full["data"]["BRAID_MODEL_REPOSITORY"]]["readOnly"]
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
    named = {each["name"] for each in pod_of(manifests)["containers"][0]["ports"]}
    assert {each["port"] for each in pod_monitor["spec"]["podMetricsEndpoints"]} <= named
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
