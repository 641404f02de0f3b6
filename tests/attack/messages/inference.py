"""Requests to ``braid.v1.InferenceService`` that are wrong in other things than their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from braid_client.wire import inference_pb2
from tests.attack.messages.grpc_calls import BRAID, GrpcCall
from tests.attack.messages.tensors import ROW
from tests.attack.target import PREY

MEGABYTE = "m" * (1 << 20)
INVALID, MISSING = "INVALID_ARGUMENT", "NOT_FOUND"


def request(**changes: Any) -> inference_pb2.InferRequest:
    """Return a right request but for ``changes``."""
    x = inference_pb2.Tensor(name="x", dtype="FP32", shape=(1, 3), data=ROW)
    return inference_pb2.InferRequest(**{"model": PREY, "inputs": [x], **changes})


FIELDS: Mapping[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "no model": ({"model": ""}, MISSING, ("no model named ''",)),
    "an unknown model": ({"model": "nobody"}, MISSING, ("no model named 'nobody'",)),
    "a path for a model": ({"model": "../../etc/passwd"}, MISSING, ("no model named",)),
    "a model of a megabyte": ({"model": MEGABYTE}, MISSING, ("no model named 'mmm",)),
    "a model of controls": ({"model": "a\n\x1b\x00"}, MISSING, (r"a\n\x1b\x00",)),
    "version 0": ({"version": "0"}, MISSING, ("no version '0'",)),
    "version -1": ({"version": "-1"}, MISSING, ("no version '-1'",)),
    "version 2": ({"version": "2"}, MISSING, ("no version '2'; versions: 1",)),
    "a version beyond 64 bits": ({"version": "9" * 30}, MISSING, ("no version '999",)),
    "a version of a megabyte": ({"version": "1" * (1 << 20)}, MISSING, ("no version '111",)),
    "a version in other digits": ({"version": "\u0661"}, MISSING, ("no version",)),
    "a version with a sign": ({"version": "+1"}, MISSING, ("no version '+1'",)),
    "a version with a space": ({"version": " 1"}, MISSING, ("no version ' 1'",)),
    "a version with a point": ({"version": "1.0"}, MISSING, ("no version '1.0'",)),
    "a label that is none": ({"version": "canary"}, MISSING, ("no version 'canary'",)),
    "a path for a version": ({"version": "../1"}, MISSING, ("no version '../1'",)),
    "a request id of 129 bytes": ({"request_id": "é" * 65}, INVALID, ("longer than 128 bytes",)),
    "a request id of a megabyte": ({"request_id": MEGABYTE}, INVALID, ("longer than 128 bytes",)),
    "an unknown output": ({"outputs": ["z"]}, INVALID, ("no output 'z'",)),
    "an output without a name": ({"outputs": [""]}, INVALID, ("no output ''",)),
    "an output of a megabyte": ({"outputs": [MEGABYTE]}, INVALID, ("no output 'mmm",)),
    "a hundred thousand outputs": ({"outputs": ["z"] * 100_000}, INVALID, ("no output 'z'",)),
    "priority 11": ({"priority": 11}, INVALID, ("priority 11",)),
    "priority -1": ({"priority": -1}, INVALID, ("priority -1",)),
    "priority -2^31": ({"priority": -(1 << 31)}, INVALID, ("priority -2147483648",)),
    "a negative timeout": ({"timeout_us": -1}, INVALID, ("timeout",)),
    "the longest timeout": ({"timeout_us": (1 << 63) - 1}, "OK", ()),
}
"""Fields of a request, the status, and words of the message."""


def calls() -> Iterator[tuple[str, GrpcCall]]:
    """Yield each mistake as a call and in a stream, and mistakes about streams themselves."""
    for name, (changes, status, words) in FIELDS.items():
        for method in ("Infer", "InferStream"):
            yield f"{method}: {name}", GrpcCall(BRAID + method, [request(**changes)], status, words)
    stream = f"{BRAID}InferStream"
    decode = ("cannot be decoded",)
    yield "no bytes", GrpcCall(f"{BRAID}Infer", [b""], MISSING, ("no model named ''",))
    yield "half a message", GrpcCall(f"{BRAID}Infer", [b"\x0a\x7f"], INVALID, decode)
    yield "a group without end", GrpcCall(f"{BRAID}Infer", [b"\x0b" * 5000], INVALID, decode)
    yield (
        "a name that is no text",
        GrpcCall(f"{BRAID}Infer", [b"\x0a\x02\xff\xfe"], INVALID, decode),
    )
    yield "an empty stream", GrpcCall(stream, [], "OK")
    yield "noise in a stream", GrpcCall(stream, [request(), b"\xff"], INVALID, decode)
    wrong_then_right = [request(model="nobody"), request()]
    yield "a right request after a wrong one", GrpcCall(stream, wrong_then_right, MISSING)
