"""Contenders that are up: started, asked for the first time, loaded, stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.children import ChildFailed
from benchmarks.peers.hosting.contract import Contender
from benchmarks.peers.hosting.environments import python_of, versions_in
from benchmarks.peers.hosting.servers import START_S, Hosting, Server, serving
from benchmarks.peers.load.calls import CallFailed, Target, connected
from benchmarks.peers.load.client import ClientProcess, Job
from benchmarks.peers.load.loops import Samples
from benchmarks.peers.load.tensors import read_questions
from benchmarks.peers.models import Model
from benchmarks.peers.records import Load, Row, Turn
from benchmarks.reports import percentile

OPEN_LOOP_CONNECTIONS = 32
TIMEOUT_S = 20.0
"""Seconds after which a client gives a request up."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How one turn is timed."""

    warmup_s: float
    measure_s: float
    rate_per_s: float | None = None  # of open loops


class Stand:
    """One contender with one model, up or down."""

    def __init__(self, contender: Contender, model: Model, hosting: Hosting, folder: Path) -> None:
        self.contender = contender
        self.row = Row(tuple(hosting.batch_sizes), _versions(contender))
        self.unloaded_s = 0.0  # median latency of some first requests
        self._model = model
        self._hosting = hosting
        self._folder = folder
        self._starts = 0
        self._stack = ExitStack()
        self._server: Server | None = None

    def start(self) -> None:
        """Start the server, wait until it is at its best speed.

        Raises:
            ChildFailed: it ended, or gave no right answer in time.
        """
        self._starts += 1
        folder = self._folder / f"{self.contender.name}-{self._starts}"
        server = self._stack.enter_context(serving(self.contender, self._hosting, folder))
        self._server = server
        has_upload = server.await_line("UP", "READY") == "UP"
        since = time.perf_counter() if has_upload else server.started
        self._await_answer(server)
        first_answer_s = time.perf_counter() - since
        server.await_line("READY")
        best_speed_s = time.perf_counter() - since
        self.unloaded_s = self._ask(server, times=5)
        if self._starts == 1:
            self.row.first_answer_s = round(first_answer_s, 3)
            self.row.best_speed_s = round(best_speed_s, 3) if has_upload else None

    def stop(self) -> None:
        self._server = None
        self._stack.close()

    def fail(self, reason: str) -> None:
        """Take part no longer."""
        self.row.failed = reason
        self.stop()

    @property
    def cpu_s(self) -> float:
        return self._server.cpu_s() if self._server else 0.0

    def turn(self, load: Load, round_number: int, pace: Pace, clients: ClientProcess) -> Turn:
        """Load the server once.

        Raises:
            ChildFailed: the server has ended.
        """
        assert self._server is not None, "started before"
        job = Job(
            address=self._server.address,
            model=self._model.name,
            questions=str(self._model.questions),
            clients=load.clients or OPEN_LOOP_CONNECTIONS,
            warmup_s=pace.warmup_s,
            measure_s=pace.measure_s,
            rate_per_s=pace.rate_per_s,
            timeout_s=TIMEOUT_S,
            seed=round_number,
        )
        samples = _run(clients, job)
        self._server.check()
        self.row.memory_mib = max(self.row.memory_mib, self._server.memory_mib())
        return Turn(
            contender=self.contender.name,
            load=load,
            round=round_number,
            answers=len(samples.latency_us),
            errors=dict(samples.errors),
            seconds=samples.seconds,
            p50_us=percentile(samples.latency_us, 50),
            p99_us=percentile(samples.latency_us, 99),
            requests_per_s=samples.answers_per_s,
            rate_per_s=pace.rate_per_s,
        )

    def _await_answer(self, server: Server) -> None:
        deadline = time.perf_counter() + START_S
        while True:
            try:
                self._ask(server, times=1)
            except CallFailed as error:
                server.check()
                if time.perf_counter() > deadline:
                    raise ChildFailed(server.failure(f"does not answer: {error}")) from error
                time.sleep(0.01)
            else:
                return

    def _ask(self, server: Server, times: int) -> float:
        """Send some requests; returns the median latency in seconds.

        Raises:
            CallFailed: no answer.
            ChildFailed: not the right one; asking again would not change it.
        """
        questions = read_questions(self._model.questions)
        target = Target(server.address, self._model.name, TIMEOUT_S)
        seconds = []
        with connected(target, questions) as call:
            for number in range(times):
                begun = time.perf_counter()
                check = call(number)
                seconds.append(time.perf_counter() - begun)
                if not check():
                    raise ChildFailed(server.failure("answers wrongly"))
        return percentile(seconds, 50)


def _run(clients: ClientProcess, job: Job) -> Samples:
    try:
        return clients.run(job)
    except ChildFailed as error:  # no fault of the server
        raise SystemExit(f"the client program failed: {error}") from error


def _versions(contender: Contender) -> Mapping[str, str]:
    installed = versions_in(python_of(contender))
    if contender.requirements is None:
        names = ["grpcio", "numpy", "torch", "onnxruntime"]
    else:
        lines = contender.requirements.read_text().split()
        names = [line.partition("==")[0].partition("[")[0].lower() for line in lines]
    return {name: installed[name] for name in names if name in installed}
