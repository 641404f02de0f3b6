"""Inference messages of the wire, written from requests and read into results.

    InferRequest ──write_request──> bytes ──gRPC──> bytes ──read_result──> InferResult

gRPC passes these bytes as they are. Tensors are neither put into protobuf's messages nor taken out
of them, as each of that copies (``wire_fields``); what else a message holds is protobuf's.
"""

import uuid
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from braid_client import wire_fields
from braid_client.errors import UNREADABLE, BraidError, ServerError, error_of_code
from braid_client.records import InferRequest, InferResult, StreamAnswer, Timing, version_text
from braid_client.tensors import (
    BYTES,
    Array,
    array_of,
    read_tensor,
    stored,
    write_strings,
    write_tensor,
)
from braid_client.wire import inference_pb2 as wire
from braid_client.wire_fields import Part

_INPUTS = wire.InferRequest.DESCRIPTOR.fields_by_name["inputs"].number
_OUTPUTS = wire.InferResponse.DESCRIPTOR.fields_by_name["outputs"].number
_RESPONSE = wire.InferStreamResponse.DESCRIPTOR.fields_by_name["response"].number


def write_request(request: InferRequest, request_id: str = "") -> bytes:
    """Return the InferRequest of a request; ``request_id`` is for one that has none.

    Raises:
        InvalidArgument: an input is not an array, or of a type that the wire has not.
    """
    head = wire.InferRequest(model=request.model)
    if request.version is not None:
        head.version = version_text(request.version)
    if request.request_id or request_id:
        head.request_id = request.request_id or request_id
    if request.outputs:
        head.outputs.extend(request.outputs)
    if request.priority:
        head.priority = request.priority
    if request.timeout_s is not None:
        head.timeout_us = max(1, round(request.timeout_s * 1e6))
    inputs = request.inputs
    if not isinstance(inputs, Mapping):
        inputs = {"": inputs}  # the server knows the name of the only input
    large: list[Part] = []
    for name, array in inputs.items():
        dtype, elements = stored(name, array)
        if dtype == BYTES:
            large += wire_fields.field(_INPUTS, write_strings(name, elements))
        elif elements.nbytes < wire_fields.SMALL_BYTES:
            head.inputs.add(name=name, dtype=dtype, shape=elements.shape, data=elements.tobytes())
        else:
            large += wire_fields.field(_INPUTS, write_tensor(name, dtype, elements))
    return b"".join([head.SerializeToString(), *large])


def write_stream_request(request: InferRequest) -> bytes:
    """Return the message of a request on a stream, with an id that its answer carries."""
    return write_request(request, request_id="" if request.request_id else uuid.uuid4().hex)


def read_result(data: bytes | memoryview, request: InferRequest | None = None) -> InferResult:
    """Read an InferResponse.

    Raises:
        ServerError: no such message, an output contradicts itself, or it answers another request.
    """
    try:
        rest, tensors = wire_fields.split(data, _OUTPUTS) or (bytes(data), [])
        result = _result(wire.InferResponse.FromString(rest), list(map(read_tensor, tensors)))
    except DecodeError:
        raise ServerError(UNREADABLE) from None
    if request is not None and (
        (request.outputs and set(request.outputs) != result.outputs.keys())
        or (request.request_id and request.request_id != result.request_id)
    ):
        raise ServerError("the server's answer is that to another request")
    return result


def _result(message: wire.InferResponse, taken: Sequence[tuple[str, Array]] = ()) -> InferResult:
    """Return the result that a message holds, with the outputs that were taken out of it."""
    named = taken or [(tensor.name, array_of(tensor, tensor.data)) for tensor in message.outputs]
    outputs = dict(named)
    if len(outputs) < len(named):
        raise ServerError("the server's answer has two outputs of one name")
    timing = message.timing
    return InferResult(
        outputs=outputs,
        timing=Timing(timing.queue_us, timing.compute_us, timing.total_us, timing.prepare_us),
        batch_size=message.batch_size,
        batch_rows=message.batch_rows,
        plan_id=message.plan_id,
        model=message.model,
        version=message.version,
        request_id=message.request_id,
    )


def read_answer(data: bytes) -> StreamAnswer:
    """Read an InferStreamResponse; a malformed result becomes an error of its request alone.

    Raises:
        ServerError: no such message.
    """
    rest, responses = wire_fields.split(data, _RESPONSE) or (data, [])
    try:
        message = wire.InferStreamResponse.FromString(rest)
        if len(responses) > 1 or (responses and message.HasField("error")):
            message, responses = wire.InferStreamResponse.FromString(data), []
    except DecodeError:
        raise ServerError(UNREADABLE) from None
    name = message.request_id
    if not responses and message.WhichOneof("outcome") != "response":
        error = error_of_code(message.error.code, message.error.message, name)
        return StreamAnswer(name, error=error)
    try:
        result = read_result(responses[0]) if responses else _result(message.response)
        return StreamAnswer(name, result)
    except BraidError as error:
        return StreamAnswer(name, error=error)
