"""Traces of inference requests, without a tracing library.

    interceptor (telemetry.py) ──sets──> current ──asked by──> servicers/inference/service.py

Off by default: then ``current`` is None, and a request pays for one look.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from braid.server.inference.requests import InferenceResult


class Trace(Protocol):
    """Trace that the present call belongs to."""

    def request_ended(
        self, model: str, version: str, status: str, seconds: float, outcome: InferenceResult | None
    ) -> None:
        """Record a request that ended now.

        Args:
            model: registered name; "" if the request named none that is.
            version: that was asked, if known.
            status: name of a gRPC status.
            seconds: that it took.
            outcome: with the times on the way, if it was computed.
        """


@dataclass(slots=True)
class Sampling:
    """Which requests are traced. Belongs to the event loop."""

    is_on: bool = True
    rate: int = 1  # one request of so many
    count: int = -1  # requests that will be traced; -1: no limit
    _passed: int = 0  # since the last one that was traced

    def takes_next(self) -> bool:
        """Return whether the request that ends now is traced."""
        if not self.is_on or self.count == 0:
            return False
        self._passed += 1
        if self._passed < self.rate:
            return False
        self._passed = 0
        self.count = max(-1, self.count - 1)
        return True


current: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""Set for each call, by the port that it came in on."""
