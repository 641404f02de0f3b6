"""Servers that serve a model with open shapes, and a second model for the neighbour's clients."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.load.children import ChildFailed
from benchmarks.peers import models as fixed
from benchmarks.peers.hosting.contract import Contender, find_contenders
from benchmarks.peers.hosting.environments import SetupFailed, python_of
from benchmarks.peers.hosting.servers import Hosting, Server, serving
from benchmarks.peers.load.calls import CallFailed, Target
from benchmarks.peers.load.client import ClientProcess, Job
from benchmarks.peers.load.loops import Samples
from benchmarks.peers.results import BRAID, THIRTY_LINES
from braid_client import BraidError, Client

TIMEOUT_S = 60.0
"""Seconds after which a client gives a request up."""

START_S = 3600.0
"""Seconds from a server's start until it answers as fast as it can; Braid measures plans first."""

NEIGHBOUR_CLIENTS = 4
IDLE_CORES = 0.1
_LOOK_S = 0.5


@dataclass(slots=True)
class Stand:
    """A contender that was started."""

    name: str
    model: str
    server: Server
    start_s: float  # until it served the model as fast as it can
    neighbour: str = ""  # address of the server that serves the neighbour, if there is one
    failure: str = ""  # why it takes part no longer

    @property
    def target(self) -> Target:
        return Target(self.server.address, self.model, timeout_s=TIMEOUT_S)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Note it as a failure if the server has ended, or takes no connection."""
        try:
            yield
            self.server.check()
        except (ChildFailed, CallFailed) as error:
            self.failure = str(error)
            print(f"{self.name} failed: {error}", file=sys.stderr)

    def settle(self, limit_s: float) -> float:
        """Wait until the server idles, ``limit_s`` seconds at most; returns how long it took."""
        begun = time.perf_counter()
        while (passed_s := time.perf_counter() - begun) < limit_s:
            before, since = self.server.cpu_s(), time.perf_counter()
            time.sleep(_LOOK_S)
            if self.server.cpu_s() - before < IDLE_CORES * (time.perf_counter() - since):
                break
        return passed_s


@contextmanager
def standing(
    contenders: Sequence[Contender],
    hosting: Hosting,
    neighbour: fixed.Model | None,
    folder: Path,
) -> Iterator[tuple[list[Stand], Mapping[str, str]]]:
    """Start the contenders one after the other; those that cannot are told with the reason."""
    left_out: dict[str, str] = {}
    stands = []
    with ExitStack() as stack:
        for contender in contenders:
            try:
                with ExitStack() as own:
                    stands.append(_stand(contender, hosting, neighbour, folder, own))
                    stack.push(own.pop_all())
            except (SetupFailed, ChildFailed, BraidError) as error:
                left_out[contender.name] = str(error)
                print(f"{contender.name} is left out: {error}", file=sys.stderr)
        yield stands, left_out


def _stand(
    contender: Contender,
    hosting: Hosting,
    neighbour: fixed.Model | None,
    folder: Path,
    stack: ExitStack,
) -> Stand:
    name = contender.name
    python_of(contender)
    print(f"starting {name} with {hosting.model}", file=sys.stderr)
    sizes = hosting.batch_sizes if contender.dynamic_batching else (1,)
    hosting = replace(hosting, batch_sizes=sizes)
    server = stack.enter_context(serving(contender, hosting, folder / name))
    server.await_line("READY", limit_s=START_S)
    start_s = time.perf_counter() - server.started
    if neighbour is None:
        return Stand(name, hosting.model, server, start_s)
    if name == BRAID:
        with Client(server.address) as client:
            client.register(
                neighbour.name,
                neighbour.file,
                batch_sizes=[1],
                planner="sequential",
                wait=True,
                timeout_s=START_S,
            )
        return Stand(name, hosting.model, server, start_s, server.address)
    beside = Hosting(neighbour.file, neighbour.name, hosting.threads, (1,))
    if not contender.serves(neighbour.name):
        (contender,) = find_contenders([THIRTY_LINES], contender.folder.parent)
    other = stack.enter_context(serving(contender, beside, folder / f"{name}-beside"))
    other.await_line("READY")
    return Stand(name, hosting.model, server, start_s, other.address)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Clients of another model: Poisson arrivals from a process of their own."""

    model: fixed.Model
    rate_per_s: float
    turn_s: float
    clients: ClientProcess

    @contextmanager
    def asking(self, stand: Stand) -> Iterator[Samples]:
        """Ask while the block runs, and on until a turn of ``turn_s`` is over."""
        samples, over = Samples(), threading.Event()
        failures: list[Exception] = []
        job = Job(
            address=stand.neighbour,
            model=self.model.name,
            questions=str(self.model.questions),
            clients=NEIGHBOUR_CLIENTS,
            warmup_s=0.0,
            measure_s=self.turn_s,
            rate_per_s=self.rate_per_s,
            timeout_s=TIMEOUT_S,
        )

        def ask() -> None:
            try:
                while not over.is_set():
                    samples.merge(self.clients.run(replace(job, seed=len(samples.latency_us))))
            except ChildFailed as error:
                failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield samples
        finally:
            over.set()
            thread.join()
        for failure in failures:
            raise failure
