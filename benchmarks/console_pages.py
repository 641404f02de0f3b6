"""What pages of the console take on a server with many models, and how long they hold it up.

    python -m benchmarks.console_pages --stores FOLDER --rounds 0      (registers the models, once)
    python -m benchmarks.console_pages --stores FOLDER --tree . --tree ../older --out FOLDER

Each checkout (``--tree``) serves a store of its own, which has 200 models and one of 300 units.
Pages are asked for in turns. Beside each page another connection asks for ``/v2/health/live``
without a pause: its slowest answer is how long the page kept requests from the event loop.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from benchmarks.environment import REPOSITORY, describe
from benchmarks.load.processes import braid_server
from benchmarks.networks.fires import FIRES, Fires
from benchmarks.reports import write_report
from braid.server.cli.local.demo_networks.network import classifier
from braid.server.cli.local.demo_networks.onnx_file import write_onnx
from braid_client import Client, PlannerOptions

MODELS = 200
PAGES = ("", "jobs", "models/many-007", "models/units", "devices", "schedules/units/1/1", "sign-in")


@dataclass(slots=True)
class Asked:
    """Answers to one page of one checkout."""

    page_ms: list[float] = field(default_factory=list)
    delay_ms: list[float] = field(default_factory=list)  # slowest answer beside each page
    size_bytes: int = 0


@contextmanager
def served(tree: Path, stores: Path) -> Iterator[tuple[Client, int]]:
    """Serve a checkout's store; yields a client and the HTTP port."""
    python = str(tree / ".venv/bin/python")
    with braid_server(stores / tree.name, tree=tree, python=python) as server:
        yield server.client, server.http_port


def fill(client: Client, folder: Path) -> None:
    """Register the models, as far as they are not there."""
    planner, registered = PlannerOptions("greedy"), {model.name for model in client.models()}
    if "units" not in registered:
        large = write_onnx(classifier("units", partial(Fires, 74), 32), folder / "units.onnx")
        client.register("units", large, planner=planner, wait=True)
    small = write_onnx(FIRES["six"], folder / "six.onnx")
    names = [f"many-{number:03}" for number in range(MODELS)]
    jobs = [client.register(n, small, planner=planner) for n in names if n not in registered]
    for job in jobs:
        for _ in client.watch_job(job.id):
            pass


def get(connection: HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status}")
    return body


def ask(port: int, page: str, asked: Asked) -> None:
    """Ask for a page once, and for the server's health as long as that takes."""
    is_over, slowest_ms = threading.Event(), 0.0

    def probe() -> None:
        nonlocal slowest_ms
        connection = HTTPConnection("127.0.0.1", port)
        get(connection, "/v2/health/live")
        is_warm.set()
        while not is_over.is_set():
            began = time.perf_counter()
            get(connection, "/v2/health/live")
            slowest_ms = max(slowest_ms, (time.perf_counter() - began) * 1e3)
        connection.close()

    is_warm, beside = threading.Event(), threading.Thread(target=probe)
    beside.start()
    is_warm.wait()
    began = time.perf_counter()
    body = get(HTTPConnection("127.0.0.1", port), f"/console/{page}")
    asked.page_ms.append((time.perf_counter() - began) * 1e3)
    is_over.set()
    beside.join()
    asked.delay_ms.append(slowest_ms)
    asked.size_bytes = len(body)


def report(asked: dict[str, dict[str, Asked]]) -> None:
    print(f"{'page':22} {'checkout':14} {'KiB':>6} {'page ms':>9} {'delay ms':>9} {'worst':>7}")
    for page in PAGES:
        for tree, pages in asked.items():
            one = pages[page]
            print(
                f"{page or 'models':22} {tree:14} {one.size_bytes / 1024:6.1f} "
                f"{median(one.page_ms):9.1f} {median(one.delay_ms):9.1f} {max(one.delay_ms):7.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stores", type=Path, required=True, help="folder of the stores")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout with its .venv")
    parser.add_argument("--rounds", type=int, default=15, help="0: only register the models")
    parser.add_argument("--out", type=Path, help="folder for console_pages.json")
    args = parser.parse_args()
    trees = [tree.resolve() for tree in args.tree or [REPOSITORY]]
    stores = args.stores.resolve()
    stores.mkdir(parents=True, exist_ok=True)
    document = describe("jinja2", "starlette", "uvicorn")
    asked = {tree.name: {page: Asked() for page in PAGES} for tree in trees}
    with ExitStack() as stack:
        ports = {}
        for tree in trees:
            client, ports[tree.name] = stack.enter_context(served(tree, stores))
            fill(client, stores)
        for number in range(args.rounds + 1):
            for page in PAGES:
                for name, port in ports.items():
                    ask(port, page, Asked() if number == 0 else asked[name][page])
    if args.rounds:
        report(asked)
    if args.out and args.rounds:
        rows = {
            tree: {
                page: {"page_ms": one.page_ms, "delay_ms": one.delay_ms, "bytes": one.size_bytes}
                for page, one in pages.items()
            }
            for tree, pages in asked.items()
        }
        document |= {"pages": rows}
        write_report(args.out / "console_pages.json", document)


if __name__ == "__main__":
    main()
