"""Bodies of inference: one JSON object, then the bytes of tensors that are sent as they are.

    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3],
                 "parameters": {"binary_data_size": 12}}]} and 12 bytes

``Inference-Header-Content-Length`` says how long the object is; without it, the body has no more.
Answers have the same form: with binary tensors for the outputs that ask for ``binary_data``, or all
if the request asks for ``binary_data_output``.

Read into, and written from, the same messages as gRPC's (``braid.server.servicers.oip.tensors``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import orjson

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import PIECE_BYTES, Work
from braid.core.tensor import BYTES
from braid.server.inference.call_memory import LaterReply
from braid.server.inference.requests import GivenRequest, check_listed
from braid.server.rpc.status import Context
from braid.server.servicers.oip.parameters import is_read, value_of
from braid.server.servicers.oip.tensors import OpenInference, SplitMessage
from braid.server.servicers.oip.wire import messages
from braid.server.servicers.rest.answers import Written, measured
from braid.server.servicers.rest.json_messages import parameters_of, set_parameter
from braid.server.servicers.rest.json_reading import JsonBody, Numbers, read_json
from braid.server.servicers.rest.json_tensors import PIECE_ELEMENTS, raw_of, texts_of
from braid_client.wire_fields import Part

HEAD_LENGTH = "inference-header-content-length"
MAX_JSON_BYTES = 16 << 20
"""Beyond, tensors have to be sent as binary data: lists of numbers take 20 times their text."""

AT_ONCE_BYTES = 1 << 20
"""Tensors that are written as JSON before their answer is sent; larger ones are meanwhile."""

MAX_SHAPE_BYTES = 1 << 19
"""Text of a shape; any that a tensor can have takes less."""

SMALL_BYTES = 1 << 16
"""Answers up to this size are sent as a whole, with their head."""

LARGE_PIECE_ELEMENTS = 1 << 18
"""Numbers that are written as one piece of work where all of the text is kept: 5 ms."""

WRITER_BYTES = 1 << 20
"""Text that a writer holds, and its connection has not taken: of a few pieces."""

_BINARY, _BINARY_SIZE, _ALL_BINARY = "binary_data", "binary_data_size", "binary_data_output"
_REGION = "shared_memory_region"


@dataclass(slots=True)
class AnswerHead:
    """Headers of an answer."""

    json_bytes: int | None = None  # None: the answer has no binary tensors


WriteTexts = Callable[[SplitMessage, Any, int], Iterator[bytes]]
"""Writes an answer as JSON, in pieces of so many elements."""


@dataclass(frozen=True, slots=True)
class RestRequest(SplitMessage):
    """Inference request of one body."""

    is_binary: bool = False  # outputs that do not say otherwise
    binary: Mapping[str, bool] = field(default_factory=dict)  # outputs that say
    answer: AnswerHead = field(default_factory=AnswerHead)
    texts: WriteTexts | None = None  # of an answer in another form

    def is_sent_binary(self, output: Any) -> bool | None:
        """True: an output goes after the JSON; False: in it; None: to shared memory."""
        if _REGION in output.parameters:
            return None
        return self.binary.get(output.name, self.is_binary)


class RestInference(OpenInference):
    """Inference over HTTP as a ``service.TensorProtocol``."""

    def given(self, request: SplitMessage, context: Context, in_stream: bool) -> GivenRequest:
        """Return the request in the server's terms, its reply in JSON and binary data."""
        assert isinstance(request, RestRequest)
        asked = request.message.outputs
        is_binary = request.is_binary
        if asked:
            is_binary = all(request.is_sent_binary(output) is not False for output in asked)
        later = None if is_binary else partial(_written_later, request=request)
        return self.written_by(partial(_written, request=request), request, context, later)


def read_request(
    body: bytes, head_length: str | None, name: str, version: str
) -> Work[RestRequest]:
    """Read a body.

    Args:
        body: decompressed.
        head_length: value of HEAD_LENGTH.
        version: of the model, "" for none.

    Raises:
        BraidError: it does not hold together.
    """
    head = _head_of(body, head_length)
    if len(head) > MAX_JSON_BYTES:
        raise InvalidRequest(
            f"the JSON has more than {MAX_JSON_BYTES} bytes; send tensors as binary data"
        )
    json_body = yield from read_json(body if len(head) == len(body) else bytes(head))
    given = json_body.given
    message = messages.ModelInferRequest(model_name=name, model_version=version)
    message.id = _text(given, "id", "the request", "")
    parameters = parameters_of(given)
    check_listed("parameters", len(parameters))
    is_binary = _flag(parameters.pop(_ALL_BINARY, False), _ALL_BINARY)
    _set_parameters(parameters, message)
    contents = yield from _read_inputs(json_body, message, memoryview(body)[len(head) :])
    return RestRequest(message, contents, is_binary, _read_outputs(given, message))


def _head_of(body: bytes, length: str | None) -> memoryview:
    if length is None:
        return memoryview(body)
    if not (length.isascii() and length.isdigit() and len(length) < 12):
        raise InvalidRequest(f"{HEAD_LENGTH} is no length: {length[:40]!r}")
    if int(length) > len(body):
        raise InvalidRequest(f"{HEAD_LENGTH} is {length}, the body has {len(body)} bytes")
    return memoryview(body)[: int(length)]


def _read_inputs(body: JsonBody, message: Any, binary: memoryview) -> Work[list[Part]]:
    """Add the inputs to the message; returns the contents of those in the body."""
    contents: list[Part] = []
    at = 0
    for given in _objects(body.given, "inputs", is_needed=True):
        name = _text(given, "name", "an input")
        where = f"input {name!r}"
        datatype = _text(given, "datatype", where)
        tensor = message.inputs.add(name=name, datatype=datatype, shape=_shape(body, given, where))
        parameters = parameters_of(given, where)
        _set_parameters(parameters, tensor)
        if _REGION in parameters:
            continue
        if _BINARY_SIZE not in parameters:
            if "data" not in given:
                raise InvalidTensor(f"{where} has neither 'data' nor the parameter {_BINARY_SIZE}")
            data = body.list_of(given["data"])
            contents.append((yield from raw_of(name, datatype, data)))
            continue
        size = parameters[_BINARY_SIZE]
        if "data" in given:
            raise InvalidTensor(f"{where} has 'data' and the parameter {_BINARY_SIZE}; choose one")
        if type(size) is not int or not 0 <= size <= len(binary) - at:
            left = f"{len(binary) - at} bytes are left after the JSON"
            raise InvalidTensor(f"{where} has the {_BINARY_SIZE} {size!r}, but {left}")
        contents.append(binary[at : at + size])
        at += size
    if at != len(binary):
        raise InvalidTensor(f"{len(binary) - at} bytes after the JSON belong to no input")
    return contents


def _read_outputs(given: Mapping[str, Any], message: Any) -> dict[str, bool]:
    """Add the requested outputs to the message; returns which are to be binary, if they say."""
    binary = {}
    for asked in _objects(given, "outputs"):
        name = _text(asked, "name", "an output")
        where = f"output {name!r}"
        output = message.outputs.add(name=name)
        parameters = parameters_of(asked, where)
        if _BINARY in parameters:
            binary[name] = _flag(parameters[_BINARY], _BINARY)
        _set_parameters(parameters, output)
    return binary


def _set_parameters(given: Mapping[str, Any], message: Any) -> None:
    for name, value in given.items():
        if is_read(name):
            set_parameter(name, value, message.parameters[name])


def _objects(given: Mapping[str, Any], name: str, is_needed: bool = False) -> list[dict[str, Any]]:
    objects = given.get(name)
    if objects is None and not is_needed:
        return []
    if not isinstance(objects, list) or not all(isinstance(member, dict) for member in objects):
        raise InvalidRequest(f"{name!r} must be a list of objects")
    check_listed(name, len(objects))
    return objects


def _text(given: Mapping[str, Any], name: str, where: str, missing: str | None = None) -> str:
    value = given.get(name)
    if value is None:
        value = missing
    if not isinstance(value, str):
        raise InvalidRequest(f"{name!r} of {where} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        raise InvalidRequest(f"{name!r} of {where} is no Unicode") from None
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter {name!r} must be true or false")
    return value


def _shape(body: JsonBody, given: Mapping[str, Any], where: str) -> list[int]:
    shape = body.list_of(given.get("shape"))
    if isinstance(shape, Numbers) and len(shape.text) <= MAX_SHAPE_BYTES:
        shape = list(chain.from_iterable(shape.elements()))
    if not isinstance(shape, list) or not all(
        type(extent) is int and -(2**63) <= extent < 2**63 for extent in shape
    ):
        raise InvalidTensor(f"{where} has no list of integers as its 'shape'")
    return shape


def _written(reply: SplitMessage, request: RestRequest) -> list[Part]:
    head, binary = b"".join(_texts(reply, request, PIECE_ELEMENTS)), _binary(reply, request)
    request.answer.json_bytes = len(head) if binary else None
    return [head, *binary]


def _written_later(reply: SplitMessage, request: RestRequest) -> Work[bytes | LaterReply]:
    texts, binary = request.texts or _texts, _binary(reply, request)
    both = zip(reply.message.outputs, reply.raw_contents, strict=True)
    in_json = [each for each in both if request.is_sent_binary(each[0]) is False]
    if sum(len(content) for _, content in in_json) <= AT_ONCE_BYTES:
        head, size = list[bytes](), 0
        for text in texts(reply, request, LARGE_PIECE_ELEMENTS):
            if size > SMALL_BYTES:
                yield
            head.append(text)
            size += len(text)
        request.answer.json_bytes = size if binary else None
        whole = [*head, *binary]
        size += sum(map(len, binary))
        if size <= SMALL_BYTES:
            return b"".join(whole)
        return Written(lambda: iter(whole), size, size)

    def pieces() -> Iterator[Part]:
        yield from texts(reply, request, PIECE_ELEMENTS)
        for content in binary:
            for at in range(0, len(content), PIECE_BYTES):
                yield memoryview(content)[at : at + PIECE_BYTES]

    size_bytes: int | None = None
    if binary or any(output.datatype == BYTES for output, _ in in_json):
        # The length of the JSON is told before it, and bytes that are no text are refused.
        head_bytes = yield from measured(texts(reply, request, PIECE_ELEMENTS))
        request.answer.json_bytes = head_bytes if binary else None
        size_bytes = head_bytes + sum(map(len, binary))
    held_bytes = sum(map(len, reply.raw_contents)) + WRITER_BYTES
    return Written(pieces, held_bytes, size_bytes)


def _binary(reply: SplitMessage, request: RestRequest) -> list[Part]:
    both = zip(reply.message.outputs, reply.raw_contents, strict=True)
    return [content for output, content in both if request.is_sent_binary(output)]


def _texts(reply: SplitMessage, request: RestRequest, elements: int) -> Iterator[bytes]:
    message = reply.message
    shown: dict[str, Any] = {
        "model_name": message.model_name,
        "model_version": message.model_version,
    }
    if message.id:
        shown["id"] = message.id
    between = orjson.dumps(shown)[:-1] + b',"outputs":['
    for output, content in zip(message.outputs, reply.raw_contents, strict=True):
        is_binary = request.is_sent_binary(output)
        fields = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if is_binary:
            fields["parameters"] = {_BINARY_SIZE: len(content)}
        elif is_binary is None:
            place = output.parameters
            fields["parameters"] = {name: value_of(place[name]) for name in sorted(place)}
        head = between + orjson.dumps(fields)
        between = b","
        if is_binary is not False:
            yield head
            continue
        yield head[:-1] + b',"data":['
        yield from texts_of(output.name, output.datatype, content, elements)
        yield b"]}"
    yield b"]}" if message.outputs else between + b"]}"
