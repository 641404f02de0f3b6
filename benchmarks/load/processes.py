"""Start and stop the servers to load, and the processes that load them.

Each is a child in a session of its own: terminated on the way out, killed if that does not help.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.environment import REPOSITORY
from benchmarks.load.records import Endpoint, Job, Samples
from braid_client import Client, Unavailable

_START_S = 60.0


class ChildFailed(Exception):
    """A server or load generator ended, or did not start in time."""


@contextmanager
def module(name: str, *arguments: str, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run ``python -m name``, its standard streams piped; its messages go to ``log`` if given."""
    with ExitStack() as stack:
        messages = stack.enter_context(log.open("w")) if log else None
        process = subprocess.Popen(
            [sys.executable, "-m", name, *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if log is None else messages,
            stderr=messages,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


@contextmanager
def echo_endpoint() -> Iterator[Endpoint]:
    """The bare grpc.aio server."""
    with module("benchmarks.load.echo") as process:
        yield Endpoint("echo", f"127.0.0.1:{_line(process).strip()}", "echo", scale=1.0)


@contextmanager
def braid_endpoint(
    model: Path, scale: float, batch_sizes: Sequence[int], folder: Path
) -> Iterator[Endpoint]:
    """``braid serve`` on a store in ``folder``, with ``model`` registered and scheduled."""
    grpc_port, http_port = _free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    log = folder / "braid.log"
    options = {"--store": folder / "store", "--grpc-port": grpc_port, "--http-port": http_port}
    arguments = [str(part) for option in options.items() for part in option]
    with module("server.cli.main", "serve", *arguments, log=log) as process:
        with Client(address) as client:
            _wait_until_up(client, process, log)
            client.register(model.stem, model, batch_sizes=batch_sizes, wait=True, timeout_s=120.0)
        yield Endpoint("braid", address, model.stem, scale)


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

    def run(self, job: Job) -> Samples:
        """Run ``job`` in all processes at once and put what they saw together.

        Raises:
            ChildFailed: a process ended, e.g. because the endpoint gave a wrong answer.
        """
        shares = [job.clients // len(self._processes)] * len(self._processes)
        for index in range(job.clients % len(self._processes)):
            shares[index] += 1
        busy = [(p, n) for p, n in zip(self._processes, shares, strict=True) if n > 0]
        for process, clients in busy:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(replace(job, clients=clients))) + "\n")
            process.stdin.flush()
        samples = Samples()
        for process, _ in busy:
            answer = json.loads(_line(process))
            samples.merge(Samples(**{**answer, "errors": Counter(answer["errors"])}))
        return samples


@contextmanager
def load_generators(count: int) -> Iterator[LoadGenerators]:
    """Start ``count`` processes to load endpoints from."""
    with ExitStack() as stack:
        processes = [stack.enter_context(module("benchmarks.load.generator")) for _ in range(count)]
        yield LoadGenerators(processes)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ChildFailed(f"{process.args!r} ended with status {process.wait()}")
    return line


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
