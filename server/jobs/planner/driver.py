"""The server's side of a planner process: start it, answer its questions, end it.

    registration ──> PlannerProcess ──spawn, JSON lines──> braid.server.jobs.planner.process
                          └──asks──> MeasureStages

Guarantees: however the call ends (plan, failure, crash, time limit, cancellation), the process
is gone. Its crash fails this one call only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from braid.core.child_process import child_environment
from braid.core.errors import BraidError, Unavailable
from braid.core.graph import OpGraph, graph_to_json
from braid.core.plan import plan_from_json
from braid.core.python_process import python_command, python_environment
from braid.core.schedule import Stage
from braid.engine.processes.child_time import DidNothing, TookTooLong, wait_for_child
from braid.scheduler.options import PlannerOptions
from braid.server.jobs.interfaces import GraphFacts, MeasureStages, PlannedModel, StageQuery

log = logging.getLogger("braid.jobs.planner")

MODULE = "braid.server.jobs.planner.process"
MAX_LINE_BYTES = 256 << 20  # all the stages of a large graph in one question
STDERR_TAIL_BYTES = 8 << 10


_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that was ended: by the kernel for want of memory, or by a person."""


class PlanningFailed(BraidError):
    """The planner ended without a plan; the message gives the reason."""


class PlannerInterrupted(Unavailable):
    """The planner was killed, stopped or not started: another one may do better."""


@dataclass(frozen=True, slots=True)
class PlannerProcess:
    """A ``ports.Planner`` that runs each search in a process of its own."""

    memory_bytes: int
    search_seconds: float  # from one question to the next, or to the plan
    module: str = MODULE

    async def __call__(
        self, graph: OpGraph, options: PlannerOptions, facts: GraphFacts, measure: MeasureStages
    ) -> list[PlannedModel]:
        """Plan one static graph.

        Raises:
            PlanningFailed: too big for the search, out of memory or time, or a crash.
            PlannerInterrupted: the process was killed, stopped or could not be started.
        """
        async with self._process() as child:
            # Threads: the messages of a large graph take longer than the event loop may stand.
            await child.send(await asyncio.to_thread(_request, graph, options, facts))
            while True:
                match await asyncio.to_thread(_decode, await self._receive(child)):
                    case _Asked(queries):
                        await child.send(_answer(await measure(queries)))
                    case PlanningFailed() as error:
                        raise error
                    case planned:
                        return planned

    async def _receive(self, child: _Child) -> bytes:
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
            raise await child.post_mortem()
        return line

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[_Child]:
        child = _Child(await self._spawn())
        try:
            yield child
        finally:
            await asyncio.shield(child.end())

    async def _spawn(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *python_command(
                    self.module, f"--memory-bytes={self.memory_bytes}", f"--parent={os.getpid()}"
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=python_environment(child_environment()) | {"PYTHONIOENCODING": "utf-8"},
                limit=MAX_LINE_BYTES,
            )
        except OSError as error:  # no process more, no memory, no descriptor: for now
            raise PlannerInterrupted(
                f"no planner process can be started: {error.strerror}"
            ) from error


class _Child:
    """A planner process, and the end of what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._tail = bytearray()
        self._drain = asyncio.create_task(self._keep_tail())

    async def send(self, line: bytes) -> None:
        """Send one message; that the child is dead shows when it does not answer."""
        with suppress(ConnectionError):
            self._stdin.write(line)
            await self._stdin.drain()

    async def receive(self) -> bytes:
        """One line, or nothing if the child has ended."""
        line = await self._stdout.readline()
        return line if line.endswith(b"\n") else b""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def post_mortem(self) -> PlanningFailed | PlannerInterrupted:
        """Say how it ended, and log what it printed."""
        await self._drain
        code = await self._process.wait()
        printed = self._tail.decode(errors="replace")
        log.error("planner process crashed", extra={"exit_code": code, "stderr_tail": printed})
        if code in _FROM_OUTSIDE:
            name = signal.Signals(-code).name
            return PlannerInterrupted(f"the planner process was killed ({name})")
        return PlanningFailed(
            f"the planner process crashed (exit code {code}); the server's log has the details"
        )

    async def end(self) -> None:
        """Kill it, if it lives, and wait for its end."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._stdin.close()
        await self._drain
        await self._process.wait()

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self._tail += chunk
            del self._tail[:-STDERR_TAIL_BYTES]


def _request(graph: OpGraph, options: PlannerOptions, facts: GraphFacts) -> bytes:
    document = {
        "graph": graph_to_json(graph),
        "options": options.text,
        "facts": dataclasses.asdict(facts),
    }
    return json.dumps(document).encode() + b"\n"


def _answer(latencies_us: Sequence[float]) -> bytes:
    return json.dumps({"latencies_us": list(latencies_us)}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The child wants to know latencies."""

    queries: list[StageQuery]


def _decode(line: bytes) -> _Asked | list[PlannedModel] | PlanningFailed:
    """One message of the child; it is our own program, so a malformed one is a bug."""
    message: dict[str, Any] = json.loads(line)
    if "measure" in message:
        queries = [
            StageQuery(signature, Stage(tuple(map(tuple, groups)), strategy), ask)
            for signature, groups, strategy, ask in message["measure"]
        ]
        return _Asked(queries)
    if "planned" in message:
        return [_planned(document) for document in message["planned"]]
    return PlanningFailed(message["message"])


def _planned(document: dict[str, Any]) -> PlannedModel:
    return PlannedModel(
        planner=document["planner"],
        plan=plan_from_json(document["plan"]),
        stages=tuple(
            Stage(tuple(map(tuple, groups)), strategy, latency_us)
            for groups, strategy, latency_us in document["stages"]
        ),
        predicted_us=document["predicted_us"],
        search_seconds=document["search_seconds"],
        gap=document["gap"],
        spread=document["spread"],
        also=tuple(document["also"]),
    )
