"""OpenTelemetry spans of inference requests; its packages are loaded where BRAID_TRACING asks.

    braid.infer   model, version, status, batch size; child of the caller's span (W3C traceparent)
      ├── queue      accepted until its batch was sent to the device
      ├── transfer   to the device and back
      └── compute    on the device

Spans are made when a request has ended, from the times that it brings along: tracing adds nothing
to the way of a request but this. Transfer is both ways together and shown before the computing.
Without BRAID_TRACING ``current`` is None.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from braid.core.errors import StartupError
from braid.server.inference.requests import InferenceResult

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]

CARRIED = ("traceparent", "tracestate")


@dataclass(slots=True)
class Sampling:
    """Choice of the requests that are traced. Belongs to the event loop."""

    is_on: bool = True
    rate: int = 1  # one request of so many
    count: int = -1  # requests that will be traced; -1: no limit
    _passed: int = 0  # since the last one that was traced

    def takes_next(self) -> bool:
        if not self.is_on or self.count == 0:
            return False
        self._passed += 1
        if self._passed < self.rate:
            return False
        self._passed = 0
        self.count = max(-1, self.count - 1)
        return True


def start_tracing(exporter: str, sampling: Sampling) -> Telemetry | None:
    """Return the interceptor that makes spans; None: nothing is traced.

    ``exporter``: "off", "otlp" (the rest by OpenTelemetry's own OTEL_* variables) or "console"
    (JSON on standard output). Raises StartupError: the packages are not installed.
    """
    if exporter == "off":
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            ConsoleSpanExporter,
            SimpleSpanProcessor,
        )

        provider = TracerProvider(resource=Resource.create({"service.name": "braid"}))
        if exporter == "console":
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        else:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ImportError:
        raise StartupError(
            f"BRAID_TRACING={exporter} needs OpenTelemetry: pip install 'braid-serve[tracing]'"
        ) from None
    return Telemetry(provider.get_tracer("braid"), sampling)


@dataclass(frozen=True, slots=True)
class Telemetry(grpc.aio.ServerInterceptor):
    """Interceptor that gives each call the trace it belongs to."""

    _tracer: Tracer
    _sampling: Sampling

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> Any:
        """Set ``current`` for the call, which goes on in the same task."""
        self.begin(details)
        return await continuation(details)

    def begin(self, details: grpc.HandlerCallDetails) -> None:
        """Set ``current`` for a call, in the task that answers it."""
        carried = {
            key: value
            for key, value in details.invocation_metadata or ()
            if key in CARRIED and isinstance(value, str)
        }
        current.set(CallTrace(self._tracer, self._sampling, carried))


@dataclass(frozen=True, slots=True)
class CallTrace:
    """Trace of one call."""

    _tracer: Tracer
    _sampling: Sampling
    _carried: Mapping[str, str]

    def request_ended(
        self, model: str, version: str, status: str, seconds: float, outcome: InferenceResult | None
    ) -> None:
        """Make the spans of a request that ended now, if the request is to be traced.

        ``model``: "" if the request named none that is registered. ``seconds``: that it took.
        ``outcome``: with the times on the way, if it was computed.
        """
        if not self._sampling.takes_next():
            return
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        from opentelemetry.trace.status import Status, StatusCode

        ended_ns = time.time_ns()
        began_ns = ended_ns - round(seconds * 1e9)
        parent = TraceContextTextMapPropagator().extract(self._carried)
        span = self._tracer.start_span(
            "braid.infer", parent, SpanKind.SERVER, start_time=began_ns,
            attributes={"braid.model": model, "braid.version": version, "rpc.grpc.status": status},
        )  # fmt: skip
        if status != "OK":
            span.set_status(Status(StatusCode.ERROR))
        if outcome is not None:
            span.set_attribute("braid.batch_size", outcome.batch_size)
            span.set_attribute("braid.batch_rows", outcome.batch_rows)
            span.set_attribute("braid.plan", outcome.plan_id)
            at_ns = began_ns
            for name, us in (
                ("queue", outcome.queue_us),
                ("prepare", outcome.prepare_us),
                ("transfer", outcome.transfer_us),
                ("compute", outcome.compute_us),
            ):
                part = self._tracer.start_span(name, set_span_in_context(span), start_time=at_ns)
                at_ns += us * 1000
                part.end(at_ns)
        span.end(ended_ns)


current: ContextVar[CallTrace | None] = ContextVar("trace", default=None)
"""Set for each call, by the port that it came in on."""
