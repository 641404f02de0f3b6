"""The client program, a process of its own.

    python -m benchmarks.peers.load.client     one Job per line in, one Samples per line out (JSON)

A latency is what blocking for the answer takes: send the request's bytes, wait, receive the
answer's. Requests are built before; answers are compared after the clock has stopped.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.records import LoadJob, Samples
from benchmarks.peers.load.calls import Target, connected
from benchmarks.peers.load.loops import closed_loop, open_loop
from benchmarks.peers.load.tensors import read_questions
from braid.core.child_process import end_with_parent
from braid.engine.runtime.memory import keep_freed_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(LoadJob):
    """What to load, and how. Each client has at most one request under way."""

    transport: str
    address: str
    model: str
    path: str
    questions: str  # file of the requests and their answers


def run(job: Job) -> Samples:
    questions = read_questions(Path(job.questions))
    target = Target(job.transport, job.address, job.model, job.path, job.timeout_s)
    with ExitStack() as stack:
        calls = [stack.enter_context(connected(target, questions)) for _ in range(job.clients)]
        if job.rate_per_s is None:
            return closed_loop(calls, job.warmup_s, job.measure_s)
        return open_loop(calls, job.rate_per_s, job.warmup_s, job.measure_s, job.seed)


def main() -> None:
    """Run the jobs that come on standard input, until it ends."""
    end_with_parent(os.getppid())
    keep_freed_memory()
    for line in sys.stdin:
        print(run(Job(**json.loads(line))).to_json(), flush=True)


if __name__ == "__main__":
    main()
