"""The planner as a child process: ``python -m braid.compiler.planner_process``.

The search is CPU-bound Python; in a server it would keep the interpreter from the event loop.
Talks as planner_messages.py says. Started by planner.py; ends when its input ends, also in a
search.
"""

from __future__ import annotations

import argparse
import os
import queue
import resource
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from braid.compiler.planner_messages import (
    Ask,
    Latencies,
    LatencyQuestion,
    PlannerMessage,
    PlanningError,
    PlanRequest,
    PlansFound,
    StageQuery,
    decode,
    encode,
)
from braid.core.child_process import end_with_parent
from braid.core.errors import BraidError
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.engine.runtime.priority import process_gives_way
from braid.scheduler.planners import plan, stages_to_measure
from braid.scheduler.portfolio import candidates
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph


class Conversation:
    """JSON messages to and from the server, one a line."""

    def __init__(self, source: TextIO, sink: TextIO) -> None:
        self._sink = sink
        self._lines: queue.Queue[str | MemoryError] = queue.Queue()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: TextIO) -> None:
        try:
            for line in source:
                self._lines.put(line)
        except MemoryError as error:
            self._lines.put(error)
            return
        os._exit(3)  # the server is gone: stop searching at once

    def receive(self) -> PlannerMessage:
        """Wait for the next message.

        Raises:
            MemoryError: the message does not fit into memory.
        """
        line = self._lines.get()
        if isinstance(line, MemoryError):
            raise line
        return decode(line)

    def send(self, message: PlannerMessage) -> None:
        """Send one message."""
        self._sink.write(encode(message).decode())
        self._sink.flush()


class AskingCost:
    """A RepeatableCost that asks the server for each signature once, unless told to ask again."""

    def __init__(self, units: UnitGraph, conversation: Conversation) -> None:
        self._units = units
        self._conversation = conversation
        self._latency_us: dict[tuple[str, Ask], float] = {}

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of one stage in microseconds; the server is asked unless it is known."""
        return self._known([stage], "latency")[0]

    def measure_again_us(self, stage: Stage) -> float:
        """Latency of one stage in microseconds, measured anew."""
        (latency,) = self._ask([StageQuery(stage_signature(self._units, stage), stage, "again")])
        return latency

    def work_us(self) -> list[float]:
        """Latency of each unit alone on one thread, in microseconds."""
        return self._known(self._alone(), "work")

    def ask_all(self, stages: Sequence[Stage], *, work: bool) -> None:
        """Ask for many stages at once, so that the server knows their number.

        ``work`` (bool) adds the units alone on one thread.
        """
        wanted = self._named(stages, "latency")
        if work:
            wanted |= self._named(self._alone(), "work")
        self._learn(wanted)

    def _alone(self) -> list[Stage]:
        return [Stage(((unit,),)) for unit in range(len(self._units))]

    def _named(self, stages: Sequence[Stage], ask: Ask) -> dict[tuple[str, Ask], Stage]:
        return {(stage_signature(self._units, stage), ask): stage for stage in stages}

    def _known(self, stages: Sequence[Stage], ask: Ask) -> list[float]:
        keys: list[tuple[str, Ask]]
        keys = [(stage_signature(self._units, stage), ask) for stage in stages]
        wanted = dict(zip(keys, stages, strict=True))
        self._learn({key: stage for key, stage in wanted.items() if key not in self._latency_us})
        return [self._latency_us[key] for key in keys]

    def _learn(self, wanted: Mapping[tuple[str, Ask], Stage]) -> None:
        if wanted:
            latencies = self._ask(
                [StageQuery(name, each, ask) for (name, ask), each in wanted.items()]
            )
            self._latency_us.update(zip(wanted, latencies, strict=True))

    def _ask(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        self._conversation.send(LatencyQuestion(tuple(queries)))
        answer = self._conversation.receive()
        assert isinstance(answer, Latencies)
        return answer.latencies_us


def answer(conversation: Conversation) -> None:
    """Plan one graph, from the first message to the last."""
    request = conversation.receive()
    assert isinstance(request, PlanRequest)
    options, facts = request.options, request.facts
    units = UnitGraph.from_graph(request.graph)
    cost = AskingCost(units, conversation)
    bounded = options.planner in ("lazy-ios", "portfolio")
    cost.ask_all(stages_to_measure(units, options, facts), work=bounded)
    if bounded:
        facts = with_work(facts, cost, len(units))
    if options.planner == "portfolio":
        found = candidates(units, cost, options, facts)
    else:
        found = [plan(units, cost, options, facts)]
    conversation.send(PlansFound(tuple(found)))


def with_work(facts: DeviceFacts, cost: AskingCost, units: int) -> DeviceFacts:
    """Facts with the time for which each unit occupies the whole device, at least.

    On one thread a unit occupies one of the threads; if caches make all of them more than that
    many times as fast, the latency on all of them counts. Neither contains the price of a stage.
    """
    price_us = facts.overheads.stage_us if facts.overheads else 0.0
    alone_us = [cost.stage_latency_us(Stage(((unit,),))) for unit in range(units)]
    profiles = tuple(
        replace(profile, work_us=(max(0.0, min(work / facts.threads, alone) - price_us),))
        for profile, work, alone in zip(facts.profiles, cost.work_us(), alone_us, strict=True)
    )
    return replace(facts, profiles=profiles)


def main() -> None:
    """Read one request from stdin, answer it on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id; ends with it")
    options = parser.parse_args()
    end_with_parent(options.parent)
    limit, (_, most) = options.memory_bytes, resource.getrlimit(resource.RLIMIT_AS)
    # The reader first: a thread that finds no memory to start in is waited for without end.
    conversation = Conversation(sys.stdin, sys.stdout)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    process_gives_way()
    try:
        answer(conversation)
    except BraidError as error:
        conversation.send(PlanningError(str(error)))
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # to say so takes some
        message = "the planner ran out of memory; lower its limits r and s, or raise "
        message += "BRAID_PLANNER_MEMORY_BYTES on the server"
        conversation.send(PlanningError(message))
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
