"""A service's methods, the unary inference among them refused early while nothing can be taken.

    headers of a call ──> every model full? ──yes──> refused, its tensors never read
                                 └──no──> its message is read ──> servicer

gRPC asks for a method's handler when a call's headers are there, and reads its message only if the
handler wants it. Reading a tensor that is refused afterwards costs more than everything else
about the refusal, and in overload that is time that the device's batches wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import grpc

from braid.core.errors import BraidError
from braid.server.models.serving_models import ResolvedModel
from braid.server.rpc.status import Handler, refusing, status_code

Refusal = Callable[[], ResolvedModel | None]
"""What any inference request gets now; None: that depends on the request."""


class Methods(grpc.GenericRpcHandler):
    """The handlers of one service, by the method's full name."""

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, Handler],
        refusable: Collection[str],
        refusal: Refusal,
    ) -> None:
        """``handlers`` by the method's name; ``refusal`` is asked for those in ``refusable``."""
        self._handlers = {f"/{service}/{name}": each for name, each in handlers.items()}
        self._refusable = {f"/{service}/{name}" for name in refusable}
        self._refusal = refusal

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """The handler of a call; None: it is for another service."""
        method = handler_call_details.method
        if method in self._refusable and (target := self._refusal()) is not None:
            return refusing(counted(target))
        return self._handlers.get(method)


def counted(target: ResolvedModel) -> BraidError:
    """What a request that is refused unread gets."""
    assert target.refusal is not None
    target.metrics.request_ended(status_code(target.refusal).name, 0.0)
    return target.refusal
