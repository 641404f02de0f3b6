"""KServe's V1 protocol with plain HTTP, as curl sends it; numpy and v2 tell what is right."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.oip.rest import Answer, call
from tests.service.server_process import ServerProcess


def predict(server: ServerProcess, model: str, **body: Any) -> Answer:
    return call(server, f"/v1/models/{model}:predict", body)


ROWS = [[1.0, 2.0, 3.0], [4.0, 5.5, -6.0]]
OTHERS = [[0.5, 0.0, 1.0], [1.0, 1.0, 1.0]]


def test_rows_of_the_only_input_give_rows(oip_server: ServerProcess) -> None:
    answer = predict(oip_server, "fp32", instances=ROWS)
    assert (answer.status, answer.json) == (200, {"predictions": (2 * np.array(ROWS)).tolist()})
    assert answer.headers["content-type"] == "application/json"
    whole = predict(oip_server, "fp32", instances=[[1, 2, 3]], signature_name="serving_default")
    assert whole.json == {"predictions": [[2.0, 4.0, 6.0]]}
    versioned = call(oip_server, "/v1/models/fp32/versions/1:predict", {"instances": ROWS})
    assert versioned.json == answer.json


def test_rows_by_the_names_of_inputs_give_rows_by_the_names_of_outputs(
    oip_server: ServerProcess,
) -> None:
    instances = [{"a": a, "b": b} for a, b in zip(ROWS, OTHERS, strict=True)]
    a, b = np.array(ROWS), np.array(OTHERS)
    assert predict(oip_server, "two", instances=instances).json == {
        "predictions": [
            {"minus": minus, "plus": plus}
            for minus, plus in zip((a - b).tolist(), (a + b).tolist(), strict=True)
        ]
    }


def test_columns_give_columns(oip_server: ServerProcess) -> None:
    a, b = np.array(ROWS), np.array(OTHERS)
    assert predict(oip_server, "two", inputs={"a": ROWS, "b": OTHERS}).json == {
        "outputs": {"minus": (a - b).tolist(), "plus": (a + b).tolist()}
    }
    assert predict(oip_server, "fp32", inputs=ROWS).json == {"outputs": (a * 2).tolist()}


@pytest.mark.parametrize(
    ("model", "instances", "expected"),
    [
        ("greeting", [["ö", "null"]], [["hello ö!", "hello null!"]]),
        ("int32", [[1, -2, 3]], [[2, -4, 6]]),
        ("uint64", [[2**63 - 1, 0, 1]], [[2**64 - 2, 0, 2]]),
        ("fp16", [[0.5, 1, 2]], [[1.0, 2.0, 4.0]]),
        ("bf16", [[0.5, 1, 2]], [[1.0, 2.0, 4.0]]),
    ],
)
def test_each_datatype_follows_the_model(
    oip_server: ServerProcess, model: str, instances: list[Any], expected: list[Any]
) -> None:
    assert predict(oip_server, model, instances=instances).json == {"predictions": expected}


def test_outputs_that_have_no_rows_are_whole(oip_server: ServerProcess) -> None:
    rows = [{"x": at, "keep": at != 1} for at in range(3)]
    assert predict(oip_server, "chosen", instances=rows).json == {"predictions": [0, 2]}


def test_not_a_number_passes_both_ways(oip_server: ServerProcess) -> None:
    body = b'{"instances": [[NaN, Infinity, -Infinity], [1, 2, 3]]}'
    answer = call(oip_server, "/v1/models/fp32:predict", body)
    ((nan, high, low), numbers) = json.loads(answer.body)["predictions"]
    assert math.isnan(nan)
    assert (high, low, numbers) == (math.inf, -math.inf, [2.0, 4.0, 6.0])


def test_large_bodies_are_read_and_written_in_pieces(oip_server: ServerProcess) -> None:
    x = np.random.default_rng(1).standard_normal((300, 3, 16, 16)).astype(np.float32)
    with oip_server.client() as client:
        expected = client.infer("cnn", {"x": x}).outputs["y"]
    answer = predict(oip_server, "cnn", instances=x.tolist())
    assert answer.headers.get("transfer-encoding") == "chunked"
    np.testing.assert_allclose(answer.json["predictions"], expected, rtol=1e-4, atol=1e-5)


def test_large_bodies_by_names_are_read_and_written_in_pieces(oip_server: ServerProcess) -> None:
    x = np.random.default_rng(1).standard_normal((90_000, 3)).astype(np.float32)
    answer = predict(oip_server, "two", inputs={"a": x.tolist(), "b": x.tolist()})
    assert answer.headers.get("transfer-encoding") == "chunked"
    np.testing.assert_array_equal(np.array(answer.json["outputs"]["plus"], np.float32), x + x)


def test_long_rows_with_names_are_read_apart(oip_server: ServerProcess) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 16, 16)).astype(np.float32)
    long = [{"x": row.tolist()} for row in x]
    short = predict(oip_server, "cnn", instances=x.tolist())
    spaced = json.dumps({"instances": long}).replace("[", "[" + " " * 400)  # 130 KB each
    apart = call(oip_server, "/v1/models/cnn:predict", spaced.encode())
    assert (short.status, apart.json) == (200, short.json)


@pytest.mark.parametrize(
    ("model", "body", "status", "words"),
    [
        ("nobody", {"instances": [[1]]}, 404, "no model named 'nobody'"),
        ("fp32", {"instances": []}, 400, "rank 1"),
        ("fp32", {"instances": [[1, 2]]}, 400, "axis 1 must be 3"),
        ("fp32", {"instances": [["a", "b", "c"]]}, 400, "no FP32"),
        ("two", {"instances": [[1, 2, 3]]}, 400, "objects with a, b"),
        ("two", {"instances": [{"a": [1, 2, 3]}]}, 400, "missing input(s) b"),
        ("two", {"instances": [{"a": [1], "b": [1]}, {"a": [1]}]}, 400, "the same inputs"),
        ("two", {"inputs": {"a": 1, "b": {}}}, 400, "b"),
        ("greeting", {"instances": [[1, 2]]}, 400, "no string"),
    ],
)
def test_mistakes_are_told_as_json(
    oip_server: ServerProcess, model: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = predict(oip_server, model, **body)
    assert answer.status == status
    assert list(answer.json) == ["error"]
    assert words in answer.json["error"]


def test_states_and_names(oip_server: ServerProcess, model_files: dict[str, Path]) -> None:
    names = call(oip_server, "/v1/models").json["models"]
    assert names == sorted(names)
    assert set(model_files) <= set(names)  # other tests bring more
    shown = call(oip_server, "/v1/models/fp32")
    assert shown.status == 200
    assert shown.json == {
        "name": "fp32",
        "ready": True,
        "model_version_status": [{"version": "1", "state": "AVAILABLE"}],
    }
    missing = call(oip_server, "/v1/models/nobody")
    assert (missing.status, list(missing.json)) == (404, ["error"])
    elsewhere = call(oip_server, "/v1/nothing")
    assert (elsewhere.status, list(elsewhere.json)) == (404, ["error"])
