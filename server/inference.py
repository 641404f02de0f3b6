"""One inference request from the caller's words to the outcome, and what is counted of it.

    servicer ──read()──> GivenRequest ──check──> CheckedRequest ──batcher──> Outcome ──> Answer

The same for every protocol. Each request is counted once, under the status it ended with, also
when the message could not be read or the caller went away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

from core.errors import DeadlineExceeded, RequestCancelled
from server import tracing
from server.catalogue import Catalogue
from server.requests import GivenRequest, check_request
from server.rows import Outcome
from server.served import ServedModel
from server.status import status_code


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request led to."""

    model: ServedModel
    outcome: Outcome
    seconds: float  # since the request was read
    reply: Any = None  # what the request's ``build_reply`` made, if it has one


async def infer(
    catalogue: Catalogue,
    model: str,
    version: str,
    time_remaining: float | None,
    read: Callable[[ServedModel], GivenRequest],
) -> Answer:
    """Run one request.

    Args:
        catalogue: of the models.
        model: its name.
        version: "" for the one that answers by default.
        time_remaining: seconds until the caller's deadline.
        read: brings the request to the model; what it raises counts as this request's end.

    Raises:
        BraidError: whatever ended it.
    """
    began = perf_counter()
    outcome_name, served, outcome = "OK", None, None
    soon = asyncio.get_running_loop().call_soon  # once the answer is on its way
    found = catalogue.for_request(model, version)
    try:
        replicas = found.require()
        served = replicas.any
        given = read(served)
        checked = check_request(served, given)
        limits = [limit for limit in (time_remaining, given.timeout_s) if limit is not None]
        deadline = monotonic() + min(limits) if limits else None
        served = replicas.choose(checked)
        series = found.metrics.on(served.device.name)
        outcome = await catalogue.batcher(served).submit(served, checked, series, deadline)
        soon(series.request_computed, outcome.queue_us / 1e6, outcome.compute_us / 1e6)
        reply = outcome.reply
        if reply is None and given.build_reply is not None:
            reply = given.build_reply(outcome)
        return Answer(served, outcome, perf_counter() - began, reply)
    except asyncio.CancelledError:
        late = time_remaining is not None and perf_counter() - began >= time_remaining
        gone = DeadlineExceeded("") if late else RequestCancelled("")
        outcome_name = status_code(gone).name
        raise
    except Exception as error:
        outcome_name = status_code(error).name
        raise
    finally:
        seconds = perf_counter() - began
        soon(found.metrics.request_ended, outcome_name, seconds)
        if (trace := tracing.current.get()) is not None:
            # Names of models that exist only: nothing else of a request leaves the server.
            name, number = (served.name, str(served.version)) if served else ("", "")
            trace.request_ended(name, number, outcome_name, seconds, outcome)
