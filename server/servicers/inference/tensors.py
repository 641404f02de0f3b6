"""How the tensor-bearing messages of ``braid.v1`` are read and written: data uncopied.

    InferRequest ──read_request──> Received (the message without inputs, tensors as views of it)
    Outcome (outputs as views of the slot) ──write_response──> InferResponse, copied once

``add_to_server`` is what the generated ``add_InferenceServiceServicer_to_server`` does, with these
in the places that carry tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from braid.server.inference.requests import GivenTensor
from braid.server.inference.slot_rows import Outcome
from braid.server.rpc.status import Handler
from braid.server.servicers.inference import protowire
from braid.server.servicers.inference.methods import Methods, Refusal
from braid.server.servicers.inference.protowire import Part
from braid_client.wire import inference_pb2 as wire

_INPUTS = wire.InferRequest.DESCRIPTOR.fields_by_name["inputs"].number
_OUTPUTS = wire.InferResponse.DESCRIPTOR.fields_by_name["outputs"].number
_DATA = wire.Tensor.DESCRIPTOR.fields_by_name["data"].number
_RESPONSE = wire.InferStreamResponse.DESCRIPTOR.fields_by_name["response"].number
SERVICE_NAME = wire.DESCRIPTOR.services_by_name["InferenceService"].full_name


@dataclass(frozen=True, slots=True)
class Received:
    """An InferRequest."""

    message: wire.InferRequest  # without its inputs
    inputs: Sequence[GivenTensor]


def read_request(data: bytes | memoryview) -> Received:
    """Parse a request; what its tensors hold are views of ``data``.

    Raises:
        DecodeError: it is no such message.
    """
    parts = protowire.split(data, _INPUTS)
    if parts is None:
        whole = wire.InferRequest.FromString(bytes(data))
        inputs = [_given(tensor, tensor.data) for tensor in whole.inputs]
        del whole.inputs[:]
        return Received(whole, inputs)
    rest, tensors = parts
    return Received(wire.InferRequest.FromString(rest), [_read_tensor(each) for each in tensors])


def write_response(
    request: wire.InferRequest, version: int, outcome: Outcome, us: int
) -> list[Part]:
    """The parts of the response to a request that took ``us`` microseconds."""
    head = wire.InferResponse(
        model=request.model,
        version=str(version),
        request_id=request.request_id,
        timing=wire.Timing(queue_us=outcome.queue_us, compute_us=outcome.compute_us, total_us=us),
        batch_size=outcome.batch_size,
        batch_rows=outcome.batch_rows,
        plan_id=outcome.plan_id,
    )
    parts: list[Part] = [head.SerializeToString()]
    for name, tensor in outcome.outputs.items():
        named = wire.Tensor(name=name, dtype=tensor.dtype, shape=tensor.shape)
        data = protowire.field(_DATA, [tensor.data])
        parts += protowire.field(_OUTPUTS, [named.SerializeToString(), *data])
    return parts


def write_stream_response(
    request: wire.InferRequest, version: int, outcome: Outcome, us: int
) -> list[Part]:
    """The parts of a stream's response."""
    head = wire.InferStreamResponse(request_id=request.request_id).SerializeToString()
    response = protowire.field(_RESPONSE, write_response(request, version, outcome, us))
    return [head, *response]


def add_to_server(servicer: Any, server: grpc.aio.Server, refusal: Refusal) -> None:
    """Let ``servicer`` answer every method of the service."""
    handlers: dict[str, Handler] = {
        "Infer": grpc.unary_unary_rpc_method_handler(servicer.Infer, read_request),
        "InferStream": grpc.stream_stream_rpc_method_handler(servicer.InferStream, read_request),
    }
    server.add_generic_rpc_handlers((Methods(SERVICE_NAME, handlers, ["Infer"], refusal),))


def _read_tensor(data: memoryview) -> GivenTensor:
    parts = protowire.split(data, _DATA)
    if parts is None:
        whole = wire.Tensor.FromString(bytes(data))
        return _given(whole, whole.data)
    rest, contents = parts
    return _given(wire.Tensor.FromString(rest), contents[-1] if contents else b"")


def _given(tensor: wire.Tensor, data: bytes | memoryview) -> GivenTensor:
    return GivenTensor(tensor.name, tensor.dtype, tuple(tensor.shape), data)
