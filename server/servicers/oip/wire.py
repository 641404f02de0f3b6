"""Messages of the protocol, imported from tritonclient, and the table of its methods."""

from __future__ import annotations

from typing import Any

from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import model_config_pb2 as config
from tritonclient.grpc import service_pb2 as messages

from braid.server.rpc.status import Handler, handlers_of

_SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE_NAME: str = _SERVICE.full_name
INFER, STREAM = "ModelInfer", "ModelStreamInfer"

__all__ = ["INFER", "SERVICE_NAME", "STREAM", "config", "handlers", "messages", "request_of"]


def handlers(*parts: object) -> dict[str, Handler]:
    """Return the handlers of all methods beside inference, by name; each is in one of ``parts``."""
    return handlers_of(_SERVICE, *parts, without=(INFER, STREAM))


def request_of(rpc: str) -> Any:
    return GetMessageClass(_SERVICE.methods_by_name[rpc].input_type)()
