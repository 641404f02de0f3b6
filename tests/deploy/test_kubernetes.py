"""KServe's manifests against what KServe declares; Kubernetes' own schemas, for every manifest."""

import ast
import json
from collections.abc import Iterator
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

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
