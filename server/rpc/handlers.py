"""gRPC's method handlers: the behaviour of one, and copies with another behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from braid.server.rpc.status import Handler

Behaviour = Callable[[Any, Any], Any]
"""Function of a request, or a stream of them, and the context of its call."""

_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour_of(handler: Handler) -> Behaviour:
    found: Any = (
        handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    )
    assert found is not None
    behaviour: Behaviour = found
    return behaviour


def with_behaviour(
    handler: Handler, behaviour: Behaviour, read: Callable[[bytes], Any] | None = None
) -> Handler:
    """Return a copy of a handler with another behaviour.

    Args:
        handler: to copy.
        behaviour: of the same kind as the handler's own.
        read: in place of the handler's deserializer.
    """
    make = _MAKERS[handler.request_streaming, handler.response_streaming]
    return make(behaviour, read or handler.request_deserializer, handler.response_serializer)
