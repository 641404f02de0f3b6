"""Messages of the protocol, imported from tritonclient, and its methods beside inference."""

from functools import partial
from typing import Any

from tritonclient.grpc import model_config_pb2 as config
from tritonclient.grpc import service_pb2 as messages

from braid.server.rpc.status import handlers_of

SERVICE: Any = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
INFER, STREAM = "ModelInfer", "ModelStreamInfer"

handlers = partial(handlers_of, SERVICE, without=(INFER, STREAM))

__all__ = ["INFER", "SERVICE", "STREAM", "config", "handlers", "messages"]
