"""The client program, a process of its own.

    python -m benchmarks.peers.load.client     one Job per line in, one Samples per line out (JSON)

A latency is what blocking for the answer takes: send the request's bytes, wait, receive the
answer's. Requests are built before; answers are compared after the clock has stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.load.children import module, read_line, running
from benchmarks.peers.load.calls import Target, connected
from benchmarks.peers.load.loops import Samples, closed_loop, open_loop
from benchmarks.peers.load.tensors import read_questions
from braid.core.child_process import end_with_parent
from braid.engine.runtime.memory import keep_freed_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to load, and how. Each client has at most one request under way.

    Closed loop: each client sends its next request when it has its answer. Open loop: requests
    begin at random moments (Poisson) at ``rate_per_s`` together, whatever became of the others.
    """

    clients: int
    warmup_s: float
    measure_s: float
    rate_per_s: float | None = None  # None: closed loop
    timeout_s: float = 30.0
    seed: int = 0
    address: str
    model: str
    questions: str  # file of the requests and their answers


class ClientProcess:
    """The client program, run by another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, job: Job) -> Samples:
        """Run a job.

        Raises:
            ChildFailed: the program ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        return Samples.from_json(read_line(self._process))


@contextmanager
def client_process() -> Iterator[ClientProcess]:
    with running(module("benchmarks.peers.load.client")) as process:
        yield ClientProcess(process)


def run(job: Job) -> Samples:
    questions = read_questions(Path(job.questions))
    target = Target(job.address, job.model, job.timeout_s)
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
