"""Start and stop the servers to load, and the processes that load them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from benchmarks.environment import REPOSITORY
from benchmarks.load.children import ChildFailed, free_ports, module, read_line, running
from benchmarks.load.records import Endpoint, LoadJob, Samples
from braid_client import Client, Unavailable

_START_S = 60.0


@contextmanager
def echo_endpoint(keeps_freed_memory: bool = True) -> Iterator[Endpoint]:
    """The bare grpc.aio server, with the allocator tuned as Braid's or not."""
    options = ["--keep-freed-memory"] if keeps_freed_memory else []
    with running(module("benchmarks.load.echo", *options)) as process:
        name = "echo" if keeps_freed_memory else "echo-untuned"
        yield Endpoint(name, f"127.0.0.1:{read_line(process).strip()}", "echo", scale=1.0)


@dataclass(frozen=True, slots=True)
class BraidServer:
    """A ``braid serve`` that is up."""

    client: Client
    address: str  # of its gRPC port
    http_port: int
    process: subprocess.Popen[str]


@contextmanager
def braid_server(
    store: Path,
    options: Mapping[str, object] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
    tree: Path = REPOSITORY,
    python: str = sys.executable,
) -> Iterator[BraidServer]:
    """``braid serve`` of a checkout on a store, on free ports; its log lies beside the store."""
    grpc_port, http_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    flags = {"--store": store, "--grpc-port": grpc_port, "--http-port": http_port, **options}
    command = ["env", *(f"{name}={value}" for name, value in environment.items())]
    command += [python, "-m", "braid", "serve"]
    command += [str(part) for flag in flags.items() for part in flag]
    log = store.parent / f"{store.name}.log"
    with running(command, cwd=tree, log=log) as process, Client(address) as client:
        _wait_until_up(client, process, log)
        yield BraidServer(client, address, http_port, process)


@contextmanager
def braid_endpoint(
    model: Path, scale: float, batch_sizes: Sequence[int], folder: Path
) -> Iterator[Endpoint]:
    """``braid serve`` on a store in ``folder``, with ``model`` registered and scheduled."""
    shared_memory = {"BRAID_SYSTEM_SHARED_MEMORY": "true"}
    with braid_server(folder / "store", environment=shared_memory) as server:
        server.client.register(
            model.stem, model, batch_sizes=batch_sizes, wait=True, timeout_s=120.0
        )
        yield Endpoint("braid", server.address, model.stem, scale)


def _wait_until_up(client: Client, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            client.models()
        except Unavailable as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text()[-2000:]
                raise ChildFailed(f"braid serve did not start: {error}\n{tail}") from error
            time.sleep(0.1)
        else:
            return


class LoadGenerators:
    """Processes that share the clients of a job among them."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def run(self, job: LoadJob) -> Samples:
        """Run ``job`` in all processes at once and put what they saw together.

        Raises:
            ChildFailed: a process ended, e.g. because the endpoint gave a wrong answer.
        """
        shares = [job.clients // len(self._processes)] * len(self._processes)
        for index in range(job.clients % len(self._processes)):
            shares[index] += 1
        busy = [(p, n) for p, n in zip(self._processes, shares, strict=True) if n > 0]
        for index, (process, clients) in enumerate(busy):
            rate = None if job.rate_per_s is None else job.rate_per_s * clients / job.clients
            share = replace(job, clients=clients, rate_per_s=rate, seed=job.seed + index)
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(share)) + "\n")
            process.stdin.flush()
        samples = Samples()
        for process, _ in busy:
            samples.merge(Samples.from_json(read_line(process)))
        return samples


@contextmanager
def load_generators(
    count: int, program: str = "benchmarks.load.generator"
) -> Iterator[LoadGenerators]:
    """Start ``count`` processes of the module ``program`` to load endpoints from."""
    command = module(program)
    with ExitStack() as stack:
        yield LoadGenerators([stack.enter_context(running(command)) for _ in range(count)])
