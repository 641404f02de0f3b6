"""Routes for probes and scrapers: ``/healthz``, ``/readyz``, ``/metrics``."""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as plain_text
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from braid.server.observability.snapshot import SnapshotGauges
from braid.server.ports.http.application import text
from braid.server.security.gate import DescribedCall, Gate
from braid.server.security.tokens import METRICS


def metrics_route(
    registry: CollectorRegistry, snapshot: SnapshotGauges | None = None, gates: Sequence[Gate] = ()
) -> BaseRoute:
    """Expose a registry as OpenMetrics 1.0 or as plain text; scrapers have to pass ``gates``."""
    turn = asyncio.Lock()  # scrapers that come together occupy one thread

    async def metrics(request: Request) -> Response:
        _check_scraper(request, gates)
        render: Callable[[CollectorRegistry], bytes]
        if _accepts_openmetrics(request.headers.get("accept", "")):
            render, content_type = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
        else:
            render, content_type = plain_text.generate_latest, plain_text.CONTENT_TYPE_PLAIN_0_0_4

        def rendered() -> bytes:
            if snapshot is not None:
                snapshot.read()
            return render(registry)

        async with turn:
            if snapshot is not None:
                snapshot.look()
            # A thread: rendering thousands of series must not delay inference on this event loop.
            return Response(await asyncio.to_thread(rendered), media_type=content_type)

    return Route(METRICS, metrics)


def _check_scraper(request: Request, gates: Sequence[Gate]) -> None:
    """Let a scraper in by its token. Raises HTTPException: it has none, or a wrong one."""
    details = DescribedCall(METRICS, tuple(request.headers.items()))
    for gate in gates:
        if (refusal := gate.refusal(details)) is not None:
            headers = {"www-authenticate": "Bearer"}
            raise HTTPException(HTTPStatus.UNAUTHORIZED, str(refusal), headers)


def _accepts_openmetrics(accept: str) -> bool:
    """Return whether an Accept header names OpenMetrics, of version 1 or any.

    ``prometheus_client.choose_encoder`` raises for versions that are no numbers.
    """
    for offer in accept[:1024].lower().split(","):
        kind, *parameters = (part.strip() for part in offer.split(";"))
        versions = {part for part in parameters if part.startswith("version=")}
        is_wanted = kind == "application/openmetrics-text" and "q=0" not in parameters
        if is_wanted and versions <= {"version=1.0.0"}:
            return True
    return False


def health_routes(waits_for: Callable[[], Sequence[str]]) -> list[BaseRoute]:
    """Routes: ``/healthz`` if the process lives, ``/readyz`` once ``waits_for`` says nothing."""

    async def alive(_: Request) -> Response:
        return text("ok")

    async def ready(_: Request) -> Response:
        if waits := waits_for():
            return text(f"not ready: {'; '.join(waits)}", HTTPStatus.SERVICE_UNAVAILABLE)
        return text("ready")

    return [Route("/healthz", alive), Route("/readyz", ready)]
