"""One bad request in the words of each door: braid.v1, Open Inference Protocol, REST.

    Bad ──braid──> Infer, InferStream
     ├────oip────> ModelInfer, ModelStreamInfer
     └────rest───> POST of a request with binary tensors, or elements as JSON

A door that cannot express a request raises ``Inexpressible``, which says why.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
from tritonclient.grpc import service_pb2

from braid_client.wire import inference_pb2
from tests.attack.messages.grpc_calls import BRAID, IN_STREAM, OIP, GrpcCall
from tests.attack.messages.http_requests import HttpRequest, of_protocol, post
from tests.attack.target import PREY

ROW = np.arange(3, dtype="<f4").tobytes()
INVALID, MISSING, NOT_OFFERED = "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"
TOO_LARGE = "RESOURCE_EXHAUSTED"
HTTP_STATUS = {INVALID: 400, MISSING: 404, NOT_OFFERED: 501}
LENGTH = "Inference-Header-Content-Length"
DOORS = ("braid", "oip", "rest")

_TYPED = {
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
    "INT8": "int_contents", "UINT8": "uint_contents", "INT64": "int64_contents",
}  # fmt: skip
_PARAMETERS = {
    bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param",
}  # fmt: skip


class Inexpressible(Exception):
    """A door has no words for a request."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it is sent: as bytes, else as elements, as typed contents, or without any."""

    shape: Sequence[Any] = (1, 3)
    data: bytes | None = ROW
    dtype: str = "FP32"
    name: str = "x"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    elements: Any = None  # typed contents of the datatype, or JSON
    typed: Mapping[str, Any] | None = None  # contents by field, which only the protocol has

    @property
    def binary(self) -> bytes | None:
        return None if self.elements is not None or self.typed is not None else self.data


@dataclass(frozen=True, slots=True)
class Output:
    """One output that is asked for."""

    name: str = "y"
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bad:
    """A request that is refused, and words of the refusal: those of all doors, and of one."""

    words: Sequence[str]
    inputs: Sequence[Input] = (Input(),)
    status: str = INVALID
    model: str = PREY
    version: str = ""
    id: str = ""
    outputs: Sequence[Output] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    raw: Sequence[bytes] | None = None  # of ModelInfer: contents that are not those of the inputs
    doors: Sequence[str] = DOORS  # through others it means something else
    braid_words: Sequence[str] | None = None
    rest_words: Sequence[str] | None = None


def expressible(bad: Bad, door: str, wanted: bool, why: str) -> None:
    if door not in bad.doors or not wanted:
        raise Inexpressible(f"{door}: {why}")


def braid(bad: Bad, request_id: str = "") -> inference_pb2.InferRequest:
    """Return the request of ``braid.v1``, with an id unless it has one."""
    has_data = all(x.binary is not None and not x.parameters for x in bad.inputs)
    expressible(bad, "braid", has_data and bad.raw is None, "tensors are bytes, and nothing else")
    names = [output.name for output in bad.outputs if not output.parameters]
    expressible(bad, "braid", len(names) == len(bad.outputs), "outputs have no parameters")
    given = {"priority": "priority", "timeout": "timeout_us"}
    are_known = all(name in given and type(x) is int for name, x in bad.parameters.items())
    expressible(bad, "braid", are_known, "it has a priority and a timeout, which are integers")
    inputs = [
        inference_pb2.Tensor(name=x.name, dtype=x.dtype, shape=x.shape, data=x.binary or b"")
        for x in bad.inputs
    ]
    fields: dict[str, Any] = {given[name]: value for name, value in bad.parameters.items()}
    try:
        return inference_pb2.InferRequest(
            model=bad.model, version=bad.version, request_id=bad.id or request_id, inputs=inputs,
            outputs=names, **fields,
        )  # fmt: skip
    except ValueError as error:  # too many bits
        raise Inexpressible(f"braid: {error}") from None


def oip(bad: Bad, request_id: str = "") -> service_pb2.ModelInferRequest:
    """Return the request of the Open Inference Protocol, with an id unless it has one."""
    expressible(bad, "oip", True, "it means something else")
    try:
        request = service_pb2.ModelInferRequest(
            model_name=bad.model, model_version=bad.version, id=bad.id or request_id,
            inputs=map(_oip_input, bad.inputs), parameters=_oip_parameters(bad.parameters),
            outputs=[
                service_pb2.ModelInferRequest.InferRequestedOutputTensor(
                    name=output.name, parameters=_oip_parameters(output.parameters)
                )
                for output in bad.outputs
            ],
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Inexpressible(f"oip: {error!r}") from None
    contents = [x.binary for x in bad.inputs if x.binary is not None]
    request.raw_input_contents.extend(contents if bad.raw is None else bad.raw)
    return request


def _oip_parameters(given: Mapping[str, Any]) -> dict[str, service_pb2.InferParameter]:
    return {
        name: service_pb2.InferParameter(**{_PARAMETERS[type(value)]: value})
        for name, value in given.items()
    }


def _oip_input(x: Input) -> service_pb2.ModelInferRequest.InferInputTensor:
    contents = x.typed
    if x.elements is not None:
        texts = x.dtype == "BYTES"
        contents = {_TYPED[x.dtype]: [e.encode() for e in x.elements] if texts else x.elements}
    return service_pb2.ModelInferRequest.InferInputTensor(
        name=x.name, datatype=x.dtype, shape=x.shape, parameters=_oip_parameters(x.parameters),
        contents=contents and service_pb2.InferTensorContents(**contents),
    )  # fmt: skip


def rest(bad: Bad) -> HttpRequest:
    """Return the request of REST, bytes of tensors as binary data."""
    is_json = bad.raw is None and all(x.typed is None for x in bad.inputs)
    expressible(bad, "rest", is_json, "contents belong to their inputs, and have one form")
    path = f"/v2/models/{quote(bad.model, safe='')}"
    path += f"/versions/{quote(bad.version, safe='')}" if bad.version else ""
    has_path = bad.model and "/" not in bad.model + bad.version and len(path) < 10_000
    expressible(bad, "rest", bool(has_path), "it is part of a path of 10,000 at most")
    inputs, binary = [], b""
    for x in bad.inputs:
        shown = {"name": x.name, "datatype": x.dtype, "shape": list(x.shape)}
        size = {} if x.binary is None else {"binary_data_size": len(x.binary)}
        binary += x.binary or b""
        elements = {} if x.elements is None else {"data": x.elements}
        inputs.append({**shown, **elements, **_rest_parameters({**size, **x.parameters})})
    document: dict[str, Any] = {"inputs": inputs, **_rest_parameters(bad.parameters)}
    if bad.id:
        document["id"] = bad.id
    if bad.outputs:
        document["outputs"] = [
            {"name": output.name, **_rest_parameters(output.parameters)} for output in bad.outputs
        ]
    head = json.dumps(document).encode()
    words = bad.words if bad.rest_words is None else bad.rest_words
    headers = {LENGTH: str(len(head))}
    status = HTTP_STATUS[bad.status]
    return of_protocol(post(f"{path}/infer", head + binary, status, words, **headers))


def _rest_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"parameters": dict(given)} if given else {}


RIGHT = Bad([])


def calls(bad: Bad) -> Iterator[GrpcCall]:
    """Yield the calls that express a request; those of streams go on with a right one."""
    with_words = bad.words if bad.braid_words is None else bad.braid_words
    for make, single, stream, status, words in (
        (braid, f"{BRAID}Infer", f"{BRAID}InferStream", bad.status, with_words),
        (oip, f"{OIP}ModelInfer", f"{OIP}ModelStreamInfer", IN_STREAM, bad.words),
    ):
        try:
            request: Any = make(bad, "bad")
        except Inexpressible:
            continue
        yield GrpcCall(single, [request], bad.status, words)
        yield GrpcCall(stream, [request, make(RIGHT, "right")], status, words, goes_on=True)
