"""The planner as a child process: ``python -m server.jobs.planner_process``.

The search is CPU-bound Python; in the server it would hold the interpreter against the event
loop. One JSON object a line, strictly in turns:

    server  {"graph": {...}, "options": "ios(r=3,s=8)"}               first, once
    child   {"measure": [[signature, groups, strategy], ...]}         any number of times
    server  {"latencies_us": [...]}                                   in the same order
    child   {"planned": {...}}  or  {"failed": type, "message": ...}  last

Started and fed by planner_driver.py. Ends when its input ends, whatever it is doing.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

from core.errors import BraidError
from core.graph import graph_from_json
from core.plan import plan_to_json
from core.schedule import Stage
from scheduler.options import PlannerOptions
from scheduler.planners import Planned, plan, stages_to_measure
from scheduler.signature import stage_signature
from scheduler.units import UnitGraph

NICENESS = 10  # the search gives way to the server and the device


class Conversation:
    """Messages to and from the server."""

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

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            MemoryError: there was no room for it.
        """
        line = self._lines.get()
        if isinstance(line, MemoryError):
            raise line
        document: dict[str, Any] = json.loads(line)
        return document

    def send(self, document: dict[str, Any]) -> None:
        """Send one message."""
        self._sink.write(json.dumps(document) + "\n")
        self._sink.flush()


class AskingCost:
    """A StageCost that asks the server for each signature once."""

    def __init__(self, units: UnitGraph, conversation: Conversation) -> None:
        self._units = units
        self._conversation = conversation
        self._latency_us: dict[str, float] = {}

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of one stage, asked now unless known."""
        signature = stage_signature(self._units, stage)
        if signature not in self._latency_us:
            self._ask({signature: stage})
        return self._latency_us[signature]

    def ask_all(self, stages: Sequence[Stage]) -> None:
        """Ask for many stages at once, so that the server knows how many there are."""
        wanted = {stage_signature(self._units, stage): stage for stage in stages}
        if wanted:
            self._ask(wanted)

    def _ask(self, wanted: dict[str, Stage]) -> None:
        queries = [[name, stage.groups, stage.strategy] for name, stage in wanted.items()]
        self._conversation.send({"measure": queries})
        latencies = self._conversation.receive()["latencies_us"]
        self._latency_us.update(zip(wanted, latencies, strict=True))


def answer(conversation: Conversation) -> None:
    """Plan one graph, from the first message to the last."""
    request = conversation.receive()
    options = PlannerOptions.parse(request["options"])
    units = UnitGraph.from_graph(graph_from_json(request["graph"]))
    cost = AskingCost(units, conversation)
    cost.ask_all(stages_to_measure(units, options))
    conversation.send({"planned": planned_to_json(plan(units, cost, options), options)})


def planned_to_json(planned: Planned, options: PlannerOptions) -> dict[str, Any]:
    """What the driver turns into a ``ports.PlannedModel``."""
    return {
        "planner": options.planner,
        "plan": plan_to_json(planned.plan),
        "stages": [[stage.groups, stage.strategy, stage.latency_us] for stage in planned.stages],
        "predicted_us": planned.predicted_us,
        "search_seconds": planned.search_seconds,
        "gap": 0.0 if options.planner == "ios" else None,  # exact within its limits
    }


def main() -> None:
    """Read one request from stdin, answer it on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-bytes", type=int, required=True)
    limit = parser.parse_args().memory_bytes
    # The reader first: a thread that finds no memory to start in is waited for without end.
    conversation = Conversation(sys.stdin, sys.stdout)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    try:
        answer(conversation)
    except BraidError as error:
        conversation.send({"failed": type(error).__name__, "message": str(error)})
    except MemoryError:
        message = "the planner ran out of memory; lower its limits r and s, or raise "
        message += "BRAID_PLANNER_MEMORY_BYTES on the server"
        conversation.send({"failed": "MemoryError", "message": message})
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
