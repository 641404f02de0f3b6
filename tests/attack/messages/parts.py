"""Requests of very many parts: a few bytes each on the wire, some hundreds each as objects."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2 as oip

from braid_client.wire import admin_pb2, inference_pb2
from braid_client.wire_fields import field
from tests.attack.messages.doors import INVALID, ROW, TOO_LARGE
from tests.attack.messages.grpc_calls import BRAID, OIP, OPEN, GrpcCall
from tests.attack.messages.http_requests import HttpRequest, post
from tests.attack.messages.rest import INFER
from tests.attack.target import GROWN, PREY

MILLIONS = 7 << 20
METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (admin_pb2, inference_pb2, oip, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
NOISE = b"\xff"  # the beginning of a tag, and nothing after it
LARGER = ("Received message larger than max",)
TOO_MANY = ("more than 131072 fields and messages; send fewer",)
ANY = oip.InferParameter(int64_param=1)


def request(*raw: bytes, **fields: Any) -> oip.ModelInferRequest:
    """A request that is right but for ``fields``."""
    given = {"model_name": PREY, "inputs": [{"name": "x", "datatype": "FP32", "shape": (1, 3)}]}
    return oip.ModelInferRequest(**{**given, **fields}, raw_input_contents=raw)


def typed(name: str, number: bytes, count: int) -> bytes:
    """A request whose input has so many numbers, packed as they come."""
    at = oip.InferTensorContents.DESCRIPTOR.fields_by_name[name].number
    return b"".join(field(5, field(5, field(at, [number * count]))))


MESSAGES: Mapping[str, tuple[str, bytes, Sequence[str]]] = {
    "integers": (
        f"{OIP}ModelInfer",
        typed("int64_contents", b"\x01", MILLIONS),
        ["more than 4194304 integers or truth values; send them raw"],
    ),
    "a stream of empty inputs": (f"{OIP}ModelStreamInfer", b"\x2a\x00" * MILLIONS, TOO_MANY),
    "a name of 60 MiB": (
        f"{OIP}ModelInfer",
        request(ROW, inputs=[{"name": "\x1b" * (60 << 20)}]).SerializeToString(),
        ["more than 2097152 bytes in a text"],
    ),
    "5,000 inputs": (
        f"{OIP}ModelInfer",
        request(*[ROW] * 5000, inputs=[{"name": "x"}] * 5000).SerializeToString(),
        ["the request has 5000 inputs; it may have 4096"],
    ),
    "5,000 outputs": (
        f"{OIP}ModelInfer",
        request(ROW, outputs=[{"name": "y"}] * 5000).SerializeToString(),
        ["the request has 5000 outputs; it may have 4096"],
    ),
    "5,000 parameters": (
        f"{OIP}ModelInfer",
        request(ROW, parameters={str(n): ANY for n in range(5000)}).SerializeToString(),
        ["the request has 5000 parameters; it may have 4096"],
    ),
    "5,000 tensors": (
        f"{BRAID}Infer",
        inference_pb2.InferRequest(model=PREY, inputs=[{"name": "x"}] * 5000).SerializeToString(),
        ["the request has 5000 inputs; it may have 4096"],
    ),
}
"""Method, a message, and words of the refusal: all are INVALID_ARGUMENT.

Each kind of part: tests/server/rpc/test_wire_parts.py.
"""


def calls() -> Iterator[tuple[str, GrpcCall]]:
    """Yield all cases by name, and each method with fields that nobody knows, and with none."""
    for what, (method, data, words) in MESSAGES.items():
        yield f"parts: {what}", GrpcCall(method, [data], INVALID, words)
    for method in METHODS:
        unknown = b"\x98\x3f\x01" * 1_000_000
        refused = (TOO_LARGE, LARGER) if method in OPEN else (INVALID, TOO_MANY)
        yield f"parts: {method}", GrpcCall(method, [unknown], *refused)
        told = [f"cannot be decoded as a request of {method};"]
        yield f"noise: {method}", GrpcCall(method, [NOISE], INVALID, told)


def _times(text: str, begin: str, end: str) -> str:
    """JSON of almost 16 MiB."""
    return begin + ",".join([text] * ((16 << 20) // (len(text) + 2))) + end


DATA = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":['
BINARY = ["send tensors as binary data"]
BODIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "lists": (_times("[]", DATA, "]}]}"), ["not JSON"]),
    "objects": (_times("{}", DATA, "]}]}"), BINARY),
    "strings": (_times('""', DATA, "]}]}"), BINARY),
    "numbers": (_times("1", DATA, "]}]}"), ["bytes of data"]),
    "numbers that are none": (_times("NaN", DATA, "]}]}"), ["bytes of data"]),
    "rows of numbers": (_times("[1,2]", DATA, "]}]}"), ["bytes of data"]),
    "rows, one of them short": (_times("[1,2]", DATA, ",[1]]}]}"), ["nested unevenly"]),
    "inputs": (_times("{}", '{"inputs":[', "]}"), BINARY),
    "named inputs": (_times('{"name":"x"}', '{"inputs":[', "]}"), BINARY),
    "outputs": (_times("{}", '{"inputs":[],"outputs":[', "]}"), BINARY),
    "parameters": (_times('"a":1', '{"inputs":[],"parameters":{', "}}"), BINARY),
    "extents": (_times("1", DATA[:-9] + ',"shape":[', "]}]}"), ["no list of integers"]),
    "5,000 inputs": (
        json.dumps({"inputs": [{"name": "x"}] * 5000}),
        ["the request has 5000 inputs; it may have 4096"],
    ),
    "5,000 outputs": (
        json.dumps({"inputs": [], "outputs": [{"name": "y"}] * 5000}),
        ["the request has 5000 outputs; it may have 4096"],
    ),
    "5,000 parameters": (
        json.dumps({"inputs": [], "parameters": {str(n): n for n in range(5000)}}),
        ["the request has 5000 parameters; it may have 4096"],
    ),
}
"""JSON of a request to infer, and words of the refusal: all are 400."""

LARGE: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "JSON": (30_000_000, {"binary_data": False}),
    "classes": (1_000_000, {"classification": 10_000}),
}
"""Elements that a request of 200 bytes makes, and how it wants them: all are answered."""


def requests() -> Iterator[tuple[str, HttpRequest]]:
    for what, (body, words) in BODIES.items():
        yield f"parts: {what}", post(INFER, body, 400, words)
    for path, name in (
        ("logging", "log_info"),
        ("trace/setting", "trace_rate"),
        ("repository/index", "ready"),
        ("repository/models/x/load", "parameters"),
    ):
        lists = _times("[]", f'{{"{name}":[', "]}")
        yield f"parts: lists to {path}", post(f"/v2/{path}", lists, 400)
    for what, (count, wanted) in LARGE.items():
        given = [
            {"name": "x", "datatype": "UINT8", "shape": [1], "data": [200]},
            {"name": "r", "datatype": "INT64", "shape": [1], "data": [count]},
        ]
        asked = {"inputs": given, "outputs": [{"name": "y", "parameters": wanted}]}
        yield f"large: {what}", post(f"/v2/models/{GROWN}/infer", json.dumps(asked), 200)
