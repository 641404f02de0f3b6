"""Stubs and servicers of ``braid.v1``, made from what the wire's messages say of its services."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from braid_client.wire import admin_pb2, inference_pb2

ADMIN: Final[ServiceDescriptor] = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
INFERENCE: Final[ServiceDescriptor] = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]


def stub_of(channel: grpc.Channel | grpc.aio.Channel, service: ServiceDescriptor) -> Any:
    """Return an object whose methods call those of a service."""
    calls = {
        method.name: getattr(channel, _kind(method))(
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        for method in service.methods
    }
    return SimpleNamespace(**calls)


def add_to(server: grpc.Server, service: ServiceDescriptor, servicer: object) -> None:
    """Answer calls of a service by the methods of ``servicer``; others are UNIMPLEMENTED."""
    handlers = {
        method.name: getattr(grpc, f"{_kind(method)}_rpc_method_handler")(
            getattr(servicer, method.name),
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
        if hasattr(servicer, method.name)
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service.full_name, handlers)]
    )


def _kind(method: MethodDescriptor) -> str:
    streams = (method.client_streaming, method.server_streaming)
    return "_".join("stream" if is_stream else "unary" for is_stream in streams)
