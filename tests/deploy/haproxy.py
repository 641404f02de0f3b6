"""A real HAProxy with deploy/haproxy/haproxy.cfg, in front of servers on this machine."""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.places import DEPLOY, program
from tests.service.server_process import free_port

FILE = DEPLOY / "haproxy/haproxy.cfg"
CHECK_MS = 200  # between two checks of a node, instead of a second


@dataclass(frozen=True, slots=True)
class Addresses:
    """HOST:PORT of a node's two ports, or of HAProxy's."""

    address: str  # of gRPC
    http_address: str


def configuration(nodes: Sequence[Addresses], grpc_port: int, http_port: int) -> str:
    """Return our configuration with other addresses, and checks that follow sooner."""
    text = with_nodes(FILE.read_text(), len(nodes))
    for number, node in enumerate(nodes, start=1):
        check = f"port {node.http_address.rpartition(':')[2]}"
        text = text.replace(f" node-{number}:8001", f" {node.address} {check}")
        text = text.replace(f" node-{number}:8002", f" {node.http_address} {check}")
    text = text.replace(" port 8002 inter 1s", f" inter {CHECK_MS}ms")
    text = text.replace("bind :8001", f"bind 127.0.0.1:{grpc_port}")
    text = text.replace("bind :8002", f"bind 127.0.0.1:{http_port}")
    assert not re.search(r"node-\d:|bind :", re.sub(r"#.*", "", text))
    return text


def with_nodes(text: str, count: int) -> str:
    """Return a configuration with ``count`` nodes in each backend, as its head says to add them."""
    text = re.sub(r"^ +server node-(?!1 ).*\n", "", text, flags=re.MULTILINE)

    def lines(first: re.Match[str]) -> str:
        return "".join(first[0].replace("node-1", f"node-{n}") for n in range(1, count + 1))

    return re.sub(r"^ +server node-1 .*\n", lines, text, flags=re.MULTILINE)


@contextmanager
def haproxy(
    folder: Path, nodes: Sequence[Addresses], change: Callable[[str], str] = str
) -> Iterator[Addresses]:
    """HAProxy in front of servers, its configuration changed by ``change``; ends it afterwards."""
    command = program("haproxy", "haproxy")
    ports = free_port(), free_port()
    file = folder / "haproxy.cfg"
    file.write_text(change(configuration(nodes, *ports)))
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([command, "-f", str(file), "-db"], stdout=log, stderr=log)
    try:
        yield Addresses(*(f"127.0.0.1:{port}" for port in ports))
        assert process.poll() is None, (folder / "haproxy.log").read_text()
    finally:
        process.kill()
        process.wait()
