"""How the tensor-bearing messages of the protocol are read and written: contents uncopied.

    ModelInferRequest ──read_request──> Received (the message without contents, views of them)
    Reply (the message without contents, views of them) ──write_...reply──> ModelInferResponse

Replies are written as soon as a batch has ended, straight from the memory it shared with the
device.

``add_to_server`` is what the generated ``add_GRPCInferenceServiceServicer_to_server`` does, with
these in the two places that carry tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from braid.server.servicers.inference import protowire
from braid.server.servicers.inference.methods import Methods, Refusal
from braid.server.servicers.inference.protowire import Part
from braid.server.servicers.oip.wire import SERVICE_NAME, messages

_RAW_INPUTS = messages.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_RAW_OUTPUTS = messages.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number
_RESPONSE = messages.ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number


@dataclass(frozen=True, slots=True)
class Received:
    """A ModelInferRequest."""

    message: Any  # without its raw_input_contents
    raw_contents: Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Reply:
    """A ModelInferResponse."""

    message: Any  # without its raw_output_contents
    raw_contents: Sequence[bytes | memoryview] = ()


def read_request(data: bytes | memoryview) -> Received:
    """Parse a request; its raw contents are views of ``data``.

    Raises:
        DecodeError: it is no such message.
    """
    parts = protowire.split(data, _RAW_INPUTS)
    if parts is None:
        whole = messages.ModelInferRequest.FromString(bytes(data))
        raw = list(whole.raw_input_contents)
        del whole.raw_input_contents[:]
        return Received(whole, raw)
    rest, contents = parts
    return Received(messages.ModelInferRequest.FromString(rest), contents)


def write_reply(reply: Reply) -> list[Part]:
    """The parts of a response, contents uncopied."""
    return [
        reply.message.SerializeToString(),
        *protowire.fields(_RAW_OUTPUTS, reply.raw_contents),
    ]


def write_final_reply(reply: Reply) -> list[Part]:
    """The parts of a stream's response that is the only one to its request, and says so."""
    reply.message.parameters["triton_final_response"].bool_param = True
    return write_stream_reply(reply)


def write_stream_reply(reply: Reply, error_message: str = "") -> list[Part]:
    """The parts of a stream's response."""
    head = messages.ModelStreamInferResponse(error_message=error_message)
    return [head.SerializeToString(), *protowire.field(_RESPONSE, write_reply(reply))]


def add_to_server(servicer: Any, server: grpc.aio.Server, refusal: Refusal) -> None:
    """Let ``servicer`` answer every method of the service."""
    service = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    handlers = {}
    for method in service.methods:
        read: Callable[[bytes], Any] = _class_of(method.input_type).FromString
        write: Callable[[Any], bytes] | None = _class_of(method.output_type).SerializeToString
        make = grpc.unary_unary_rpc_method_handler
        if method.name == "ModelInfer":
            read, write = read_request, None  # replies are serialised where their tensors lie
        elif method.name == "ModelStreamInfer":
            read, write = read_request, None
            make = grpc.stream_stream_rpc_method_handler
        handlers[method.name] = make(getattr(servicer, method.name), read, write)
    methods = Methods(SERVICE_NAME, handlers, ["ModelInfer"], refusal)
    server.add_generic_rpc_handlers((methods,))


def _class_of(message_type: Any) -> Any:
    return getattr(messages, message_type.name)
