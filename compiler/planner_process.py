"""The planner as a child process: ``python -m braid.compiler.planner_process``.

The search is CPU-bound Python; in a server it would keep the interpreter from the event loop.
Talks as planner_messages.py says, in lines on stdin and stdout. Started by planner.py; ends with
the process that started it (engine/processes/fork_server.py), also in a search.
"""

import argparse
import resource
import sys
import traceback
from collections.abc import Sequence

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


def receive() -> PlannerMessage:
    """Wait for the next message. Raises MemoryError: the message does not fit into memory."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(3)  # the server is gone
    return decode(line)


def send(message: PlannerMessage) -> None:
    sys.stdout.write(encode(message).decode())
    sys.stdout.flush()


def ask(queries: Sequence[StageQuery]) -> Sequence[float]:
    send(LatencyQuestion(tuple(queries)))
    answer = receive()
    assert isinstance(answer, Latencies)
    return answer.latencies_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-bytes", type=int, required=True)
    options = parser.parse_args()
    limit = mapped_bytes() + options.memory_bytes
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    process_gives_way()
    try:
        request = receive()
        assert isinstance(request, PlanRequest)
        plans = find_plans(request.graph, request.options, request.facts, ask)
        send(PlansFound(tuple(plans)))
    except BraidError as error:
        send(PlanningError(str(error)))
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # to say so takes some
        message = "the planner ran out of memory; lower its limits r and s, or raise "
        message += "BRAID_MEMORY_BYTES on the server"
        send(PlanningError(message))
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
