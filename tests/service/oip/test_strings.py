import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import tritonclient.http as http

from braid_client import AsyncClient, InferRequest, InvalidArgument
from tests.service.oip.conftest import SHM_KEY
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess

WORDS = np.array([["Anna", ""], ["Zürich ✈", "a\0b\nc"], ["日本語", "x" * 5000]], object)
GREETINGS = [[f"hello {word}!" for word in row] for row in WORDS]


def expected(path: Path, **inputs: np.ndarray) -> list[Any]:
    return list(onnxruntime.InferenceSession(str(path)).run(None, inputs))


def as_text(array: np.ndarray) -> list[Any]:
    flat = [each.decode() if isinstance(each, bytes) else each for each in array.ravel()]
    rows: list[Any] = np.array(flat, object).reshape(array.shape).tolist()
    return rows


def given(module: Any, array: np.ndarray, **options: Any) -> Any:
    made = module.InferInput("x", list(array.shape), "BYTES")
    made.set_data_from_numpy(array, **options)
    return made


def test_triton_clients_send_and_take_strings(oip_server: ServerProcess) -> None:
    with triton.InferenceServerClient(oip_server.address) as client:
        answer = client.infer("greeting", [given(triton, WORDS)])
        assert as_text(answer.as_numpy("y")) == GREETINGS
        metadata = client.get_model_metadata("greeting")
        assert [(each.datatype, list(each.shape)) for each in metadata.inputs] == [
            ("BYTES", [-1, 2])
        ]
        config = client.get_model_config("greeting").config
        assert (config.input[0].data_type, config.platform) == (13, "onnx_braid")  # TYPE_STRING
    with http.InferenceServerClient(oip_server.http_address) as client:
        for sent in (True, False):
            for asked in (None, True, False):
                wanted = None
                if asked is not None:
                    wanted = [http.InferRequestedOutput("y", binary_data=asked)]
                given_ = given(http, WORDS, binary_data=sent)
                answer = client.infer("greeting", [given_], outputs=wanted)
                assert as_text(answer.as_numpy("y")) == GREETINGS


@pytest.mark.parametrize("kind", [object, str, "bytes"])
def test_the_sdk_takes_arrays_of_strings_and_gives_objects(
    oip_server: ServerProcess, kind: Any
) -> None:
    words = np.array([["a", "Zürich"]], object)
    if kind == "bytes":
        words = np.array([[each.encode() for each in words[0]]], object)

    with oip_server.client() as client:
        result = client.infer("greeting", {"x": words.astype(object if kind == "bytes" else kind)})
        (streamed,) = client.infer_stream([InferRequest("greeting", {"x": words})])

    assert result.outputs["y"].tolist() == [["hello a!", "hello Zürich!"]]
    assert result.outputs["y"].dtype == object
    assert streamed.result is not None
    assert streamed.result.outputs["y"].tolist() == result.outputs["y"].tolist()


def test_a_pipeline_of_text_and_numbers_answers_as_onnxruntime(
    oip_server: ServerProcess, model_files: dict[str, Path]
) -> None:
    colours = np.array([["red"], ["green"], ["blue"], ["green"], ["red"], ["blue"]], object)
    sizes = np.linspace(-3, 3, 6, dtype=np.float32).reshape(6, 1)
    label, scores = expected(model_files["labels"], colour=colours, size=sizes)

    with oip_server.client() as client:
        found = client.infer("labels", {"colour": colours, "size": sizes}).outputs
        assert found["label"].tolist() == label.tolist()  # in two batches
        np.testing.assert_array_equal(found["scores"], scores)
        with pytest.raises(InvalidArgument, match=r"OneHotEncoder: Unknown Category"):
            client.infer("labels", {"colour": np.array([["pink"]]), "size": sizes[:1]})
        lines = np.array(["the quick fox", "lazy LAZY dog", ""])
        counts = client.infer("counts", {"text": lines}).outputs["counts"]
        assert counts.tolist() == [[1, 0, 0], [0, 1, 2], [0, 0, 0]]
        numbers = np.array([[0, 1, 2], [7, 1, 1]])
        names = client.infer("names", {"x": numbers}).outputs["y"]
        assert names.tolist() == expected(model_files["names"], x=numbers)[0].tolist()


def test_rows_may_lie_along_another_axis_of_an_output(oip_server: ServerProcess) -> None:
    for rows in (1, 3, 4, 11):  # padded, whole, and joined from several batches
        words = np.array([[f"{row}", "ü" * row] for row in range(rows)], object)
        numbers = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)

        with oip_server.client() as client:
            found = client.infer("turned", {"x": words, "n": numbers}).outputs

        assert found["y"].tolist() == words.T.tolist()
        np.testing.assert_array_equal(found["m"], numbers.T)


async def test_strings_of_several_callers_share_batches(oip_server: ServerProcess) -> None:
    async with AsyncClient(oip_server.address) as client:

        async def ask(number: int) -> int:
            words = np.array([[f"{number}.{row}", "é" * row] for row in range(1 + number % 3)])
            result = await client.infer("greeting", {"x": words})
            assert result.outputs["y"].tolist() == [
                [f"hello {word}!" for word in row] for row in words
            ]
            return result.batch_rows

        async with asyncio.timeout(120):
            # Until a batch has rows of two callers: as measured, each row may take as long alone.
            while max(await asyncio.gather(*map(ask, range(60)))) <= 3:
                pass


async def test_a_string_that_a_model_refuses_does_not_fail_its_neighbours(
    oip_server: ServerProcess,
) -> None:
    async with AsyncClient(oip_server.address) as client:

        async def ask(number: int) -> str:
            colour = "pink" if number % 10 == 3 else "green"
            size = np.zeros((1, 1), np.float32)
            try:
                answer = await client.infer(
                    "labels", {"colour": np.array([[colour]]), "size": size}
                )
            except InvalidArgument:
                return "refused"
            return str(answer.outputs["label"][0])

        found = await asyncio.gather(*map(ask, range(40)))

    assert found == ["refused" if number % 10 == 3 else "lime" for number in range(40)]


def test_json_has_strings_in_one_list_or_nested(oip_server: ServerProcess) -> None:
    def ask(data: object) -> Any:
        tensor = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": data}
        return call(oip_server, "/v2/models/greeting/infer", {"inputs": [tensor]})

    assert ask(["a", "b"]).json["outputs"][0]["data"] == ["hello a!", "hello b!"]
    assert ask([["a", "b"]]).status == 200


def test_strings_stay_out_of_shared_memory(oip_server: ServerProcess) -> None:
    import tritonclient.utils.shared_memory as shm

    region = shm.create_shared_memory_region("text", SHM_KEY, 4096)
    try:
        with triton.InferenceServerClient(oip_server.address) as client:
            client.register_system_shared_memory("text", SHM_KEY, 4096)
            source = triton.InferInput("x", [3, 2], "BYTES")
            source.set_shared_memory("text", 100)
            wanted = triton.InferRequestedOutput("y")
            wanted.set_shared_memory("text", 4096)

            with pytest.raises(triton.InferenceServerException, match="not read from shared memo"):
                client.infer("greeting", [source])
            with pytest.raises(triton.InferenceServerException, match="not written to shared mem"):
                client.infer("greeting", [given(triton, WORDS)], outputs=[wanted])

            client.unregister_system_shared_memory("text")
    finally:
        shm.destroy_shared_memory_region(region)


def test_answers_longer_than_their_room_get_more(oip_server: ServerProcess) -> None:
    with oip_server.client() as client:
        for text in ("x" * 10_000, "ab", "é" * 100_000):
            echoes = client.infer("echoes", {"x": np.array([[text]])}).outputs["y"]
            assert echoes.tolist() == [[text] * 64]


def test_its_version_is_ready_without_a_schedule(oip_server: ServerProcess) -> None:
    with oip_server.client() as client:
        (model,) = [each for each in client.models() if each.name == "greeting"]

    assert list(model.schedules) == []
    assert any("served whole by ONNX Runtime" in each for each in model.warnings)
    assert json.loads(oip_server.http("/v2/models/greeting"))["inputs"][0]["datatype"] == "BYTES"
