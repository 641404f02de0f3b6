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
from collections.abc import Sequence
from typing import TextIO

from braid.compiler.planner_messages import (
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
from braid.compiler.planning import find_plans
from braid.core.errors import BraidError
from braid.engine.runtime.memory import mapped_bytes
from braid.engine.runtime.priority import process_gives_way


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
        """Wait for the next message. Raises MemoryError: the message does not fit into memory."""
        line = self._lines.get()
        if isinstance(line, MemoryError):
            raise line
        return decode(line)

    def send(self, message: PlannerMessage) -> None:
        self._sink.write(encode(message).decode())
        self._sink.flush()


def answer(conversation: Conversation) -> None:
    request = conversation.receive()
    assert isinstance(request, PlanRequest)

    def ask(queries: Sequence[StageQuery]) -> Sequence[float]:
        conversation.send(LatencyQuestion(tuple(queries)))
        answer = conversation.receive()
        assert isinstance(answer, Latencies)
        return answer.latencies_us

    plans = find_plans(request.graph, request.options, request.facts, ask)
    conversation.send(PlansFound(tuple(plans)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-bytes", type=int, required=True)
    options = parser.parse_args()
    limit = mapped_bytes() + options.memory_bytes
    _, most = resource.getrlimit(resource.RLIMIT_AS)
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
        message += "BRAID_MEMORY_BYTES on the server"
        conversation.send(PlanningError(message))
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
