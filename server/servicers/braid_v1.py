"""Messages of ``braid.v1.InferenceService``, read and written without needless copies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter_ns
from typing import Any

from google.protobuf.descriptor import Descriptor

from braid.core.errors import InvalidRequest
from braid.core.inputs import GivenTensor
from braid.core.pieces import Work, joined
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import (
    DEFAULT_PRIORITY,
    GivenRequest,
    InferenceResult,
    OutputTensor,
    WriteReply,
    check_listed,
)
from braid_client import wire_fields
from braid_client.wire import inference_pb2 as wire
from braid_client.wire_fields import Part

_INPUTS = wire.InferRequest.DESCRIPTOR.fields_by_name["inputs"].number
_OUTPUTS = wire.InferResponse.DESCRIPTOR.fields_by_name["outputs"].number
_DATA = wire.Tensor.DESCRIPTOR.fields_by_name["data"].number
_RESPONSE = wire.InferStreamResponse.DESCRIPTOR.fields_by_name["response"].number


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Message of an InferRequest, and the tensors apart."""

    message: wire.InferRequest  # without its inputs
    inputs: Sequence[GivenTensor]


class BraidV1:
    """``braid.v1.InferenceService`` as a ``service.TensorProtocol``."""

    service = wire.DESCRIPTOR.services_by_name["InferenceService"].full_name
    unary, stream = "Infer", "InferStream"
    request: Descriptor = wire.DESCRIPTOR.message_types_by_name["InferRequest"]
    tensor: Descriptor | None = None
    in_order = False

    @staticmethod
    def read(data: bytes) -> ReadRequest:
        """Parse a request, with tensors as views of ``data``; DecodeError or InvalidRequest."""
        parts = wire_fields.split(data, _INPUTS)
        if parts is None:
            whole = wire.InferRequest.FromString(data)
            check_listed("inputs", len(whole.inputs))
            inputs = [
                GivenTensor(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.data)
                for tensor in whole.inputs
            ]
            del whole.inputs[:]
            return ReadRequest(whole, inputs)
        head, tensors = parts
        return ReadRequest(
            wire.InferRequest.FromString(head), [_read_tensor(tensor) for tensor in tensors]
        )

    def unpacking(self, request: ReadRequest) -> Work[ReadRequest] | None:
        return None

    def model_of(self, request: ReadRequest) -> tuple[str, str]:
        return request.message.model, request.message.version

    def given(self, request: ReadRequest, _: Any, in_stream: bool) -> GivenRequest:
        """The request in the server's own terms. InvalidRequest: its timeout is negative."""
        message = request.message
        if message.timeout_us < 0:
            raise InvalidRequest(f"timeout_us is {message.timeout_us}; give microseconds, or 0")
        return GivenRequest(
            request_id=message.request_id,
            inputs=request.inputs,
            outputs=message.outputs,
            priority=message.priority or DEFAULT_PRIORITY,
            timeout_s=message.timeout_us / 1e6 if message.timeout_us else None,
            reply=partial(_reply, message, in_stream, perf_counter_ns()),
        )

    def failure(self, request: ReadRequest, code: int, reason: str) -> bytes:
        error = wire.InferError(code=code, message=reason)
        failed = wire.InferStreamResponse(request_id=request.message.request_id, error=error)
        return failed.SerializeToString()


def _read_tensor(data: memoryview) -> GivenTensor:
    parts = wire_fields.split(data, _DATA)
    content: bytes | memoryview
    if parts is None:
        tensor = wire.Tensor.FromString(bytes(data))
        content = tensor.data
    else:
        tensor = wire.Tensor.FromString(parts[0])
        content = parts[1][-1] if parts[1] else b""
    return GivenTensor(tensor.name, tensor.dtype, tuple(tensor.shape), content)


def _reply(
    request: wire.InferRequest,
    in_stream: bool,
    began_ns: int,
    model: ModelReplica,
    outputs: Mapping[str, OutputTensor],
) -> WriteReply:
    tensors = write_tensors(outputs)

    def write_reply(result: InferenceResult) -> Work[bytes]:
        us = (perf_counter_ns() - began_ns) // 1000
        return joined(write_response(request, in_stream, model.version, tensors, result, us))

    return write_reply


def write_tensors(outputs: Mapping[str, OutputTensor]) -> list[Part]:
    parts: list[Part] = []
    for name, tensor in outputs.items():
        data = tensor.data
        parts += [_head_of(name, tensor.dtype, tensor.shape, len(data)), data]
    return parts


@lru_cache(maxsize=1024)
def _head_of(name: str, dtype: str, shape: tuple[int, ...], size_bytes: int) -> bytes:
    named = wire.Tensor(name=name, dtype=dtype, shape=shape).SerializeToString()
    tensor = named + wire_fields.head(_DATA, size_bytes)
    return wire_fields.head(_OUTPUTS, len(tensor) + size_bytes) + tensor


def write_response(
    request: wire.InferRequest,
    in_stream: bool,
    version: int,
    tensors: Sequence[Part],
    result: InferenceResult,
    us: int,
) -> list[Part]:
    """Parts of the response, with those of ``write_tensors``, to a request that took ``us``."""
    head = wire.InferResponse(
        model=request.model,
        version=str(version),
        request_id=request.request_id,
        timing=wire.Timing(
            queue_us=result.queue_us,
            compute_us=result.compute_us,
            prepare_us=result.prepare_us,
            total_us=us,
        ),
        batch_size=result.batch_size,
        batch_rows=result.batch_rows,
        plan_id=result.plan_id,
    )
    response = [head.SerializeToString(), *tensors]
    if not in_stream:
        return response
    named = wire.InferStreamResponse(request_id=request.request_id).SerializeToString()
    return [named, *wire_fields.field(_RESPONSE, response)]
