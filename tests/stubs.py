"""Stubs of Braid's gRPC services, made of their descriptors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from braid_client.wire import admin_pb2, inference_pb2

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]


def admin_stub(channel: Any) -> Any:
    return _stub(channel, ADMIN)


def inference_stub(channel: Any) -> Any:
    return _stub(channel, INFERENCE)


def _stub(channel: Any, service: ServiceDescriptor) -> Any:
    stub = SimpleNamespace()
    for method in service.methods:
        ends = (method.client_streaming, method.server_streaming)
        kind = "_".join("stream" if is_stream else "unary" for is_stream in ends)
        call = getattr(channel, kind)(
            f"/{service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(stub, method.name, call)
    return stub
