"""One inference request from the caller's words to the outcome, and what is counted of it.

    servicer ──read()──> GivenRequest ──check──> CheckedRequest ──batcher──> Outcome ──> Answer
                                                       └──> waits while its caller holds too much

The same for every protocol. Each request is counted once, under the status it ended with, also
when the message could not be read or the caller went away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter

from braid.core.errors import DeadlineExceeded, RequestCancelled
from braid.server.inference.call_memory import Account, Call, Charge
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest, GivenRequest, check_request
from braid.server.models.serving_models import ServingModels
from braid.server.observability import tracing
from braid.server.rpc.status import status_code


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a request, and what is charged for it."""

    reply: bytes  # as its ``build_reply`` made it
    charge: Charge | None = None  # for the reply; errors within a stream have none

    def release(self) -> None:
        """Release what is charged for the reply: its caller has taken it, or has left."""
        if self.charge is not None:
            self.charge.release()

    def release_when_done(self, call: Call) -> None:
        """Release at the end of ``call``, which keeps the charge alive, not the reply."""
        if self.charge is not None:
            self.charge.release_when_done(call)


async def infer(
    models: ServingModels,
    model: str,
    version: str,
    time_remaining: float | None,
    read: Callable[[ModelReplica], GivenRequest],
    memory: Account,
) -> Answer:
    """Run one request.

    Args:
        models: that serve, by name.
        model: its name.
        version: "" for the one that answers by default.
        time_remaining: seconds until the caller's deadline.
        read: brings the request to the model; what it raises counts as this request's end.
        memory: account that request and answer are charged to.

    Raises:
        BraidError: whatever ended it.
    """
    began = perf_counter()
    outcome_name, served, outcome = "OK", None, None
    charge: Charge | None = None
    soon = asyncio.get_running_loop().call_soon  # once the answer is on its way
    found = models.for_request(model, version)
    try:
        replicas = found.require()
        served = replicas.any
        given = read(served)
        checked = check_request(served, given)
        limits = [limit for limit in (time_remaining, given.timeout_s) if limit is not None]
        deadline = monotonic() + min(limits) if limits else None
        charge = await memory.take(_size_bytes(served, checked), deadline)
        if not models.answers_with(replicas, served):  # unloaded or replaced during the wait
            replicas = models.for_request(served.name, str(served.version)).require()
        queued = replicas.choose(checked)
        served = queued.replica
        series = found.metrics.on(served.device.name)
        outcome = await queued.submit(checked, series, deadline)
        soon(series.request_computed, outcome.queue_us / 1e6, outcome.compute_us / 1e6)
        reply = outcome.reply
        if reply is None:
            assert given.build_reply is not None, "every servicer sets it"
            reply = given.build_reply(outcome)
        charge.answered(len(reply))
        return Answer(reply, charge)
    except asyncio.CancelledError:
        late = time_remaining is not None and perf_counter() - began >= time_remaining
        gone = DeadlineExceeded("") if late else RequestCancelled("")
        outcome_name = status_code(gone).name
        raise
    except Exception as error:
        outcome_name = status_code(error).name
        raise
    finally:
        if outcome_name != "OK" and charge is not None:
            charge.release()
        seconds = perf_counter() - began
        soon(found.metrics.request_ended, outcome_name, seconds)
        if (trace := tracing.current.get()) is not None:
            # Names of models that exist only: nothing else of a request leaves the server.
            name, number = (served.name, str(served.version)) if served else ("", "")
            trace.request_ended(name, number, outcome_name, seconds, outcome)


def _size_bytes(served: ModelReplica, request: CheckedRequest) -> int | None:
    """Bytes of a request and its answer in this process's memory; None: not known."""
    answer_bytes = served.answer_bytes(request.shape_class, request.rows, request.outputs)
    if answer_bytes is None:
        return None
    own = (data for data in request.inputs.values() if isinstance(data, bytes | memoryview))
    return answer_bytes + sum(map(len, own))
