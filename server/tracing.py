"""Where a request's times go if somebody traces it. Knows no tracing library.

    interceptor (server.telemetry) ──sets──> current ──asked by──> server.inference

Off by default: then ``current`` is None, and a request pays for one look.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from server.rows import Outcome


class Trace(Protocol):
    """The trace that the present call belongs to."""

    def request_ended(
        self, model: str, version: str, status: str, seconds: float, outcome: Outcome | None
    ) -> None:
        """A request ended now.

        Args:
            model: registered name; "" if the request named none that is.
            version: that was asked, if known.
            status: name of a gRPC status.
            seconds: that it took.
            outcome: with the times on the way, if it was computed.
        """


current: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""Set for each call, by the port that it came in on."""
