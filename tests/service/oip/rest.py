"""Requests over HTTP, made by hand: what a client library would not send."""

import json
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from tests.service.server_process import ServerProcess

HEAD_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        """Document in the body, before binary tensors if there are any."""
        length = self.headers.get(HEAD_LENGTH.lower())
        return json.loads(self.body if length is None else self.body[: int(length)])

    @property
    def binary(self) -> bytes:
        """What follows the JSON."""
        return self.body[int(self.headers[HEAD_LENGTH.lower()]) :]


def call(
    server: ServerProcess,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    binary: bytes = b"",
    *,
    method: str | None = None,
    **headers: Any,
) -> Answer:
    """Send one request; a POST if it has a body."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
        if binary:
            headers[HEAD_LENGTH] = str(len(body))
            body += binary
    connection = HTTPConnection(server.http_address, timeout=120)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def tensor(**more: Any) -> dict[str, Any]:
    """An input for the model fp32: one row of three elements."""
    return {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **more}


def inputs(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"inputs": list(given or (tensor(),)), **more}
