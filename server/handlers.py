"""Handlers of methods: what one does, and another of the same kind that does something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from server.status import Handler

Behaviour = Callable[[Any, Any], Any]
"""What a handler does with a request, or a stream of them, and the context of its call."""

_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour_of(handler: Handler) -> Behaviour:
    """What a handler does."""
    found: Any = (
        handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    )
    assert found is not None
    behaviour: Behaviour = found
    return behaviour


def doing(
    behaviour: Behaviour, like: Handler, read: Callable[[bytes], Any] | None = None
) -> Handler:
    """A handler that does ``behaviour``, for the same messages as ``like``.

    Args:
        behaviour: of the kind that ``like`` has.
        like: whose place it takes.
        read: in place of its deserializer.
    """
    make = _MAKERS[like.request_streaming, like.response_streaming]
    return make(behaviour, read or like.request_deserializer, like.response_serializer)
