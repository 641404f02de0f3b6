"""Triton's quick start and ultralytics' client, unmodified, on a repository in Triton's layout.

The calls are those of the clients' own programs; what they expect of an answer stands in the tests.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import tritonclient.http as http
from tritonclient.grpc import model_config_pb2 as wire

from tests.clock import until
from tests.models.quick_start import CLASSES, METADATA, SIZE, classifier, detector
from tests.service.server_process import ServerProcess

LABELS = ["ship", "shore", "pier, wharf", "", "sea: open", "côte"]
QUICK_START = """
    name: "densenet_onnx"
    platform: "onnxruntime_onnx"
    max_batch_size : 0
    input [{
      name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 8, 8 ]
      reshape { shape: [ 1, 3, 8, 8 ] }
    }]
    output [{
      name: "fc6_1" data_type: TYPE_FP32 dims: [ 6 ]
      reshape { shape: [ 1, 6, 1, 1 ] }
      label_filename: "densenet_labels.txt"
    }]
"""
ROWS = """
    max_batch_size: 4
    input { name: "data_0" data_type: TYPE_FP32 dims: [ 192 ] reshape { shape: [ 3, 8, 8 ] } }
    output { name: "fc6_1" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 6, 1, 1 ] } }
    parameters { key: "metadata" value { string_value: "{'of': 'the config'}" } }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ServerProcess]]:
    folder = tmp_path_factory.mktemp("quick_start")
    root = folder / "models"
    for name, config in {"densenet_onnx": QUICK_START, "rows": ROWS, "detector": ""}.items():
        (root / name / "1").mkdir(parents=True)
        if config:
            (root / name / "config.pbtxt").write_text(config)
    classifier(root / "densenet_onnx/1/model.onnx")
    (root / "densenet_onnx/densenet_labels.txt").write_text("\n".join(LABELS), "utf-8")
    classifier(root / "rows/1/model.onnx", "n")
    detector(root / "detector/1/model.onnx")
    with ServerProcess(
        folder / "store", arguments=("--model-repository", str(root))
    ).start() as server:
        yield root, server


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, SIZE, SIZE)).astype(np.float32)


def reference(file: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, inputs)]


def infer(
    client: Any, library: Any, name: str, x: np.ndarray, count: int, **more: Any
) -> np.ndarray:
    """Ask as image_client does."""
    given = library.InferInput("data_0", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    asked = library.InferRequestedOutput("fc6_1", class_count=count, **more)
    answer = client.infer(name, [given], request_id="1", model_version="", outputs=[asked])
    return np.asarray(answer.as_numpy("fc6_1"))


@pytest.mark.parametrize("library", [triton, http])
def test_image_client_of_the_quick_start_shows_labels(
    repository: tuple[Path, ServerProcess], library: Any
) -> None:
    root, server = repository
    address = server.address if library is triton else server.http_address
    with library.InferenceServerClient(address) as client:
        metadata, config = described(client, library, "densenet_onnx")
        (taken,), (given,), (configured,) = metadata.inputs, metadata.outputs, config.input
        assert (list(taken.shape), list(given.shape)) == ([3, SIZE, SIZE], [CLASSES])
        assert (config.max_batch_size, configured.format) == (0, wire.ModelInput.FORMAT_NCHW)
        assert list(configured.dims) == [3, SIZE, SIZE]

        shown = infer(client, library, "densenet_onnx", image(), 3)
        whole = infer(client, library, "densenet_onnx", image(), 0)
    (expected,) = reference(root / "densenet_onnx/1/model.onnx", {"data_0": image()[None]})
    scores = expected.reshape(-1)
    assert whole.shape == (CLASSES,)
    np.testing.assert_allclose(whole, scores, rtol=1e-4, atol=1e-5)
    assert shown.shape == (3,)
    parts = [bytes(text).decode().split(":", 2) for text in shown]
    best = np.argsort(-scores)[:3].tolist()
    assert [(int(part[1]), part[2]) for part in parts] == [(at, LABELS[at]) for at in best]
    np.testing.assert_allclose([float(p[0]) for p in parts], scores[best], rtol=1e-4, atol=1e-5)


def described(client: Any, library: Any, name: str) -> tuple[Any, Any]:
    """Metadata and config of a model as messages, as image_client reads both."""
    from google.protobuf import json_format
    from tritonclient.grpc import service_pb2

    metadata, config = client.get_model_metadata(name), client.get_model_config(name)
    if library is triton:
        return metadata, config.config
    return (
        json_format.ParseDict(metadata, service_pb2.ModelMetadataResponse()),
        json_format.ParseDict(config, wire.ModelConfig()),
    )


def test_rows_are_reshaped_beside_their_batch(repository: tuple[Path, ServerProcess]) -> None:
    root, server = repository
    rows = np.stack([image(seed) for seed in range(3)])
    (expected,) = reference(root / "rows/1/model.onnx", {"data_0": rows})
    with http.InferenceServerClient(server.http_address) as client:
        metadata = client.get_model_metadata("rows")
        assert [x["shape"] for x in (*metadata["inputs"], *metadata["outputs"])] == [
            [-1, 192],
            [-1, 6],
        ]
        flat = infer(client, http, "rows", rows.reshape(3, -1), 0, binary_data=False)
        own = infer(client, http, "rows", rows, 0)
        classes = infer(client, http, "rows", rows.reshape(3, -1), 2, binary_data=False)
    for found in (flat, own):
        assert found.shape == (3, CLASSES)
        np.testing.assert_allclose(found, expected.reshape(3, -1), rtol=1e-4, atol=1e-5)
    assert classes.shape == (3, 2)
    best = [[int(text.split(":")[1]) for text in row] for row in classes.astype(str)]
    assert best == np.argsort(-expected.reshape(3, -1))[:, :2].tolist()


def test_other_shapes_than_the_declared_are_refused(repository: tuple[Path, ServerProcess]) -> None:
    _, server = repository
    with (
        triton.InferenceServerClient(server.address) as client,
        pytest.raises(triton.InferenceServerException, match="data_0") as refused,
    ):
        infer(client, triton, "rows", np.zeros((1, 191), np.float32), 0)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_labels_and_reshapes_survive_a_restart_and_follow_their_file(
    repository: tuple[Path, ServerProcess],
) -> None:
    root, server = repository
    assert server.stop() == 0
    server.start()
    with triton.InferenceServerClient(server.address) as client:

        def labels() -> set[str]:
            shown = infer(client, triton, "densenet_onnx", image(), CLASSES)
            return {bytes(text).decode().split(":", 2)[2] for text in shown}

        assert labels() == set(LABELS)
        with server.client() as own:  # what is said of versions leaves the interface as it is
            own.set_serving("densenet_onnx", replace(own.serving("densenet_onnx"), latest=2))
        assert labels() == set(LABELS)
        other = [f"{label}!" for label in LABELS]
        (root / "densenet_onnx/densenet_labels.txt").write_text("\r\n".join(other), "utf-8")
        until(lambda: labels() == set(other), 120, lambda: server.log)


class TritonRemoteModel:
    """Client of ``ultralytics.utils.triton``, call by call."""

    def __init__(self, url: str, library: Any, endpoint: str) -> None:
        self.library, self.endpoint = library, endpoint
        self.client = library.InferenceServerClient(url=url, verbose=False, ssl=False)
        if library is http:
            config = self.client.get_model_config(endpoint)
        else:
            config = self.client.get_model_config(endpoint, as_json=True)["config"]
        config["output"] = sorted(config["output"], key=lambda x: x.get("name"))
        self.input_formats = [x["data_type"] for x in config["input"]]
        self.input_names = [x["name"] for x in config["input"]]
        self.output_names = [x["name"] for x in config["output"]]
        self.metadata = ast.literal_eval(
            config.get("parameters", {}).get("metadata", {}).get("string_value", "None")
        )

    def __call__(self, x: np.ndarray) -> list[np.ndarray]:
        kind = self.input_formats[0].replace("TYPE_", "")
        given = self.library.InferInput(self.input_names[0], [*x.shape], kind)
        given.set_data_from_numpy(x)
        asked = [self.library.InferRequestedOutput(name) for name in self.output_names]
        answer = self.client.infer(model_name=self.endpoint, inputs=[given], outputs=asked)
        return [answer.as_numpy(name) for name in self.output_names]


@pytest.mark.parametrize("library", [triton, http])
def test_the_client_of_ultralytics_finds_metadata_and_outputs(
    repository: tuple[Path, ServerProcess], library: Any
) -> None:
    root, server = repository
    address = server.address if library is triton else server.http_address
    model = TritonRemoteModel(address, library, "detector")
    assert model.metadata == METADATA
    assert ast.literal_eval(model.metadata["names"]) == {0: "person", 1: "fire hydrant"}
    found = model(image()[None])
    expected = reference(root / "detector/1/model.onnx", {"images": image()[None]})
    for theirs, ours in zip(expected[::-1], found, strict=True):  # the file has output1 first
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    rows = TritonRemoteModel(address, library, "rows")
    assert rows.metadata == {"of": "the config"}
    model.client.close()
    rows.client.close()
