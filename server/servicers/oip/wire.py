"""Messages of the protocol, imported from tritonclient, and the table of its methods."""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2 as config
from tritonclient.grpc import service_pb2 as messages

from braid.server.rpc.status import Handler

_SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE_NAME: str = _SERVICE.full_name
INFER, STREAM = "ModelInfer", "ModelStreamInfer"

__all__ = ["INFER", "SERVICE_NAME", "STREAM", "config", "handlers", "messages", "request_of"]


def handlers(*parts: object) -> dict[str, Handler]:
    """Return the handlers of all methods beside inference, by name; each is in one of ``parts``."""
    return {
        method.name: grpc.unary_unary_rpc_method_handler(
            next(getattr(part, method.name) for part in parts if hasattr(part, method.name)),
            _class_of(method.input_type).FromString,
            _class_of(method.output_type).SerializeToString,
        )
        for method in _SERVICE.methods
        if method.name not in (INFER, STREAM)
    }


def request_of(rpc: str) -> Any:
    return _class_of(_SERVICE.methods_by_name[rpc].input_type)()


def _class_of(message_type: Any) -> Any:
    return getattr(messages, message_type.name)
