"""``inference.GRPCInferenceService``: one table of its methods, each in the part that has it.

ServerMethods, ModelMethods         models.py
RepositoryMethods                   repository.py
SharedMemoryMethods                 shared_memory.py
SettingsMethods                     settings.py
ModelInfer, ModelStreamInfer        braid.server.servicers.inference.service, with tensors.py
"""

from __future__ import annotations

from typing import Any

import grpc

from braid.server.rpc.status import Handler
from braid.server.servicers.oip.tensors import OpenInference
from braid.server.servicers.oip.wire import SERVICE, messages


def handlers(*parts: object) -> dict[str, Handler]:
    """Return the handlers of all methods beside inference, by name; each is in one of ``parts``."""
    inference = (OpenInference.unary, OpenInference.stream)
    return {
        method.name: grpc.unary_unary_rpc_method_handler(
            next(getattr(part, method.name) for part in parts if hasattr(part, method.name)),
            _class_of(method.input_type).FromString,
            _class_of(method.output_type).SerializeToString,
        )
        for method in SERVICE.methods
        if method.name not in inference
    }


def _class_of(message_type: Any) -> Any:
    return getattr(messages, message_type.name)
