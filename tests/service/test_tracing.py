import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braid_client import Client, ModelNotFound
from tests.models.small import identity
from tests.service.server_process import ServerProcess

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans(text: str) -> list[dict[str, Any]]:
    """The JSON objects between the lines of a log."""
    found, decoder = [], json.JSONDecoder()
    at = text.find("{\n")
    while at >= 0:
        span, length = decoder.raw_decode(text[at:])
        found.append(span)
        at = text.find("{\n", at + length)
    return found


def test_a_request_is_a_child_of_its_callers_span_and_its_parts_are_timed(tmp_path: Path) -> None:
    server = ServerProcess(
        tmp_path / "store", BRAID_TRACING="console", PYTHONUNBUFFERED="1"
    ).start()
    x = np.ones((1, 3), np.float32)
    server.import_ahead(model := identity(tmp_path / "id.onnx"))
    with Client(server.address, metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01")]) as client:
        client.register("id", model, batch_sizes=[1], wait=True, timeout_s=600)
        client.infer("id", {"x": x})
        with pytest.raises(ModelNotFound):
            client.infer("secret-name", {"x": x})
    assert server.stop() == 0

    found = spans(server.log)
    request, refused = (span for span in found if span["name"] == "braid.infer")
    parts = [span for span in found if span["parent_id"] == request["context"]["span_id"]]
    assert request["context"]["trace_id"] == f"0x{TRACE}"
    assert request["parent_id"] == f"0x{PARENT}"
    assert request["attributes"]["braid.model"] == "id"
    assert {part["name"] for part in parts} == {"queue", "prepare", "transfer", "compute"}
    for part in parts:
        assert request["start_time"] <= part["start_time"] <= part["end_time"]
    assert refused["attributes"]["rpc.grpc.status"] == "NOT_FOUND"
    assert refused["status"]["status_code"] == "ERROR"
    assert "secret-name" not in server.log
