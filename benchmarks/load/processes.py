"""Start and stop ``braid serve`` of a checkout."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.environment import REPOSITORY
from benchmarks.load.children import ChildFailed, free_ports, running
from braid_client import Client, Timeouts, Unavailable

_START_S = 60.0
_CALLS = Timeouts(call_s=600.0)  # as the machine may be busy


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
    before: Sequence[str] = (),
) -> Iterator[BraidServer]:
    """``braid serve`` of a checkout on a store, on free ports; its log lies beside the store.

    ``before`` is a command that runs the one that follows it.
    """
    grpc_port, http_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    flags = {"--store": store, "--grpc-port": grpc_port, "--http-port": http_port, **options}
    command = [*before, "env", *(f"{name}={value}" for name, value in environment.items())]
    command += [python, "-m", "braid", "serve"]
    command += [str(part) for flag in flags.items() for part in flag]
    log = store.parent / f"{store.name}.log"
    with running(command, cwd=tree, log=log) as process, Client(address, timeouts=_CALLS) as client:
        while process.poll() is None:  # a channel that is refused comes back only a second later
            with suppress(OSError), socket.create_connection(("127.0.0.1", grpc_port)):
                break
            time.sleep(0.01)
        _wait_until_up(client, process, log)
        yield BraidServer(client, address, http_port, process)


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
