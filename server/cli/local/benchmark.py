"""``braid benchmark``: a served model as its clients see it, beside other runtimes on this machine.

    1, 4, 16 clients ──gRPC──> the server
                     ──gRPC──> ONNX Runtime, OpenVINO, each in a small server of its own (rival.py)

They take turns. Of the other runtimes, the number of threads counts that answers most requests.
"""

import argparse
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from braid.core.allowance import cpu_allowance
from braid.core.child_process import python_command
from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.parser import counts, seconds
from braid.server.cli.remote.infer import Source, arrays_of
from braid.server.cli.remote.register import input_shape
from braid.server.cli.text import duration_text, print_json, print_table
from braid.server.settings import default_store
from braid_client import BraidError, Client, InvalidArgument

TURNS = 2
SERVED, RIVALS = "braid", ("onnxruntime", "openvino")

Kind = tuple[str, int | None]
"""Runtime, and its threads; None: the server decides."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests of some clients at once to one runtime."""

    clients: int
    runtime: str
    threads: int | None
    p50_us: float
    p99_us: float
    requests_per_second: float


def add_parser(subparsers: Subparsers) -> None:
    text = "measure a served model beside ONNX Runtime and OpenVINO"
    parser = subparsers.add_parser("benchmark", help=text)
    add = parser.add_argument
    add("name", metavar="NAME")
    add("--file", type=Path, help="the model's ONNX file; default: in BRAID_STORE on this machine")
    add("--clients", metavar="N,N,...", type=counts, default=(1, 4, 16), help="default: 1,4,16")
    add("--seconds", type=seconds, default=2.0, help="for each measurement (default: 2)")
    shape = "NAME=N,N,... of random numbers; default: as the model says, open extents as 1"
    add("--input-shape", metavar="SHAPE", type=input_shape, action="append", default=[], help=shape)
    add("--version", metavar="N", help="a number or a label; default: the one that answers")
    add("--json", action="store_true", help="figures as JSON")
    parser.set_defaults(seed=0)
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    remarks = []
    with ExitStack() as stack:

        def clients(connecting: Callable[[], Client]) -> list[Client]:
            return [stack.enter_context(connecting()) for _ in range(max(args.clients))]

        kinds: dict[Kind, list[Client]] = {(SERVED, None): clients(partial(connect, args))}
        client = kinds[SERVED, None][0]
        shapes = [Source(name, shape=shape) for name, shape in args.input_shape]
        inputs = arrays_of(client, args, [*shapes, Source("")])
        store = Path(os.environ.get("BRAID_STORE") or default_store())
        digest = client.model(args.name, version=args.version).sha256
        file = args.file or store / "artefacts" / digest / "model.onnx"
        for kind in product(RIVALS, sorted({1, cpu_allowance().threads})):
            try:
                address = stack.enter_context(_rival(file, *kind))
                kinds[kind] = clients(partial(Client, address))
                kinds[kind][0].infer(args.name, inputs)
            except BraidError as error:
                kinds.pop(kind, None)
                remarks.append(f"{kind[0]} takes no part: {error}")
        best = [x for count in args.clients for x in _best(kinds, args, inputs, count)]
    if args.json:
        print_json(best)
    else:
        _print(best)
    for remark in dict.fromkeys(remarks):
        print(textwrap.fill(remark, 100, break_on_hyphens=False), file=sys.stderr)
    return 0


@contextmanager
def _rival(file: Path, runtime: str, threads: int) -> Iterator[str]:
    """Serve a file in another runtime; yields its address. InvalidArgument: why it cannot."""
    if not file.is_file():
        raise InvalidArgument(f"{file} is not there; name the model's ONNX file with --file")
    command = python_command("braid.server.cli.local.rival", runtime, str(threads), str(file))
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address.startswith("127.0.0.1:"):
                raise InvalidArgument(address or f"it ended with exit code {process.wait()}")
            yield address
        finally:
            process.kill()


def _best(
    kinds: Mapping[Kind, Sequence[Client]], args: argparse.Namespace, inputs: Any, clients: int
) -> list[Measured]:
    """Measure in turns; returns the best of each runtime."""

    def ask(client: Client) -> float:
        began = perf_counter()
        client.infer(args.name, inputs, version=args.version)
        return perf_counter() - began

    def ask_on(client: Client) -> list[float]:
        end, latencies = perf_counter() + args.seconds / TURNS, [ask(client)]
        while perf_counter() < end:
            latencies.append(ask(client))
        return latencies

    latencies: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    elapsed = dict.fromkeys(kinds, 0.0)
    with ThreadPoolExecutor(clients) as pool:
        for kind, those in [*kinds.items()] * TURNS:
            list(pool.map(ask, those[:clients]))  # warm
            began = perf_counter()
            latencies[kind] += chain.from_iterable(pool.map(ask_on, those[:clients]))
            elapsed[kind] += perf_counter() - began
    best: dict[str, Measured] = {}
    for kind, taken in latencies.items():
        p50, p99 = map(float, np.percentile(taken, (50, 99)) * 1e6)
        found = Measured(clients, *kind, p50, p99, len(taken) / elapsed[kind])
        before = best.setdefault(found.runtime, found)
        if found.requests_per_second > before.requests_per_second:
            best[found.runtime] = found
    return list(best.values())


def _print(measured: Sequence[Measured]) -> None:
    numbers = ("p50", "p99", "requests/s")
    rows = (
        (
            *(x.clients, x.runtime, x.threads or ""),
            *(duration_text(x.p50_us), duration_text(x.p99_us), f"{x.requests_per_second:.1f}"),
        )
        for x in measured
    )
    heads = ("clients", "runtime", "threads", *numbers)
    print_table(heads, rows, right=("clients", "threads", *numbers))
    print("all through gRPC; the others in a small server on this machine")
