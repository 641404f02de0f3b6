"""The parent's side of a planner process: starts it, answers its questions, ends it.

Guarantees: however the call ends (plan, failure, crash, time limit, cancellation), the process
is gone. Its crash fails this one call only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from braid.compiler.planner_messages import (
    Latencies,
    LatencyQuestion,
    PlanningError,
    PlanRequest,
    PlansFound,
    StageQuery,
    decode,
    encode,
)
from braid.core.errors import BraidError, Unavailable
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.engine.processes.child import ChildEnd, ChildProcess, Streams
from braid.engine.processes.child_time import DidNothing, TookTooLong, wait_for_child
from braid.engine.processes.environment import library_environment
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned

log = logging.getLogger("braid.jobs.planner")

MeasureStages = Callable[[Sequence[StageQuery]], Awaitable[Sequence[float]]]
"""Answers with the latencies in microseconds, in the order of the queries."""

Planner = Callable[
    [OpGraph, PlannerSettings, DeviceFacts, MeasureStages], Awaitable[Sequence[Planned]]
]
"""Plans one static graph; the portfolio returns all different plans.

Asks for each latency at most once. Raises BraidError if the graph is too big
for the search, or the planner failed.
"""

MODULE = "braid.compiler.planner_process"


_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
"""Signals of the kernel, for want of memory, or of a user: the process is not at fault."""


class PlanningFailed(BraidError):
    """A planner ended without a plan; the message gives the reason."""


class PlannerInterrupted(Unavailable):
    """A planner process was killed, stopped or not started; planning again may succeed."""


@dataclass(frozen=True, slots=True)
class PlannerProcess:
    """A ``Planner`` that runs each search in a process of its own."""

    memory_bytes: int
    search_seconds: float  # CPU time from one question to the next, or to the plan
    module: str = MODULE

    async def __call__(
        self, graph: OpGraph, options: PlannerSettings, facts: DeviceFacts, measure: MeasureStages
    ) -> Sequence[Planned]:
        """Plan one static graph; raises PlanningFailed or PlannerInterrupted."""
        async with await self._start() as child:
            # Threads: the messages of a large graph take longer than the event loop may stand.
            await child.send(await asyncio.to_thread(encode, PlanRequest(graph, options, facts)))
            while True:
                match await asyncio.to_thread(decode, await self._receive(child)):
                    case LatencyQuestion(queries):
                        await child.send(encode(Latencies(tuple(await measure(queries)))))
                    case PlansFound(planned):
                        return planned
                    case PlanningError(text):
                        raise PlanningFailed(text)

    async def _receive(self, child: ChildProcess) -> bytes:
        receiving, seconds = asyncio.create_task(child.receive()), self.search_seconds
        try:
            await wait_for_child(receiving, child.pid, seconds, cpu_seconds=seconds)
        except DidNothing:
            raise PlannerInterrupted(f"the planner process has not run for {seconds:g} s") from None
        except TookTooLong:
            raise PlanningFailed(
                f"the planner searched for more than {seconds:g} s; lower its limits "
                "r and s, or raise BRAID_PLANNER_SEARCH_SECONDS on the server"
            ) from None
        finally:
            receiving.cancel()
        line = receiving.result()
        if not line:
            raise _post_mortem(await child.wait())
        return line

    async def _start(self) -> ChildProcess:
        try:
            return await ChildProcess.start(
                self.module,
                f"--memory-bytes={self.memory_bytes}",
                environment=library_environment(),
                streams=Streams.LINES,
            )
        except OSError as error:  # no process, memory or descriptor is left for now
            raise PlannerInterrupted(
                f"no planner process can be started: {error.strerror}"
            ) from error


def _post_mortem(end: ChildEnd) -> PlanningFailed | PlannerInterrupted:
    """Return the error of a process that ended without a plan, and log what it printed."""
    facts = {"exit_code": end.status, "stderr_tail": end.output}
    log.error("planner process crashed", extra=facts)
    if end.signal_name in _FROM_OUTSIDE:
        return PlannerInterrupted(f"the planner process was killed ({end.signal_name})")
    return PlanningFailed(
        f"the planner process crashed (exit code {end.status}); the server's log has the details"
    )
