"""``braid benchmark``: a served model as its clients see it, beside other runtimes on this machine.

    1, 4, 16 clients ──gRPC──> the server
                     ──gRPC──> ONNX Runtime, OpenVINO, each in a small server of its own (rival.py)

They take turns. Of the other runtimes, the number of threads counts that answers most requests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from braid.core.allowance import cpu_allowance
from braid.core.child_process import python_command
from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.parser import at_least_one, seconds
from braid.server.cli.remote.infer import Source, arrays_of
from braid.server.cli.remote.register import input_shape
from braid.server.cli.text import duration_text, print_json, print_table
from braid_client import Client, Model

TURNS = 2
SERVED, RIVALS = "braid", ("onnxruntime", "openvino")

Kind = tuple[str, int | None]
"""Runtime, and its threads; None: the server decides."""

Run = Callable[[int], object]
"""Runs the model once, for the client of this number."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests of one number of clients to one runtime."""

    clients: int
    runtime: str
    threads: int | None
    p50_us: float
    p99_us: float
    requests_per_second: float


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "benchmark", help="measure a served model beside ONNX Runtime and OpenVINO"
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--file", type=Path, help="the model's ONNX file (default: of a store on this machine)"
    )
    parser.add_argument(
        "--clients",
        type=counts,
        default=(1, 4, 16),
        metavar="N,N,...",
        help="at once (default: 1,4,16)",
    )
    parser.add_argument(
        "--seconds", type=seconds, default=2.0, help="for each runtime and number (default: 2)"
    )
    parser.add_argument(
        "--input-shape",
        metavar="NAME=N,N,...",
        type=input_shape,
        action="append",
        default=[],
        help="of an input's random numbers; default: as the model says, open extents as 1",
    )
    parser.add_argument("--version", metavar="N", help="a number or a label")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.set_defaults(seed=0)
    add_address(parser)


def counts(text: str) -> tuple[int, ...]:
    return tuple(at_least_one(part) for part in text.split(","))


def run(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        most = max(args.clients)
        served = [stack.enter_context(connect(args)) for _ in range(most)]
        model = served[0].model(args.name, version=args.version)
        shapes = [Source(name, shape=shape) for name, shape in args.input_shape]
        inputs = arrays_of(served[0], args, [*shapes, Source("")])
        runs: dict[Kind, Run] = {(SERVED, None): _requests(served, model.name, inputs)}
        file, remarks = args.file or _file_of(model), list[str]()
        if not file.is_file():
            remarks.append(f"no comparison: {file} is not there; name the ONNX file with --file")
        for kind in product(RIVALS, sorted({1, cpu_allowance().threads})) if not remarks else ():
            address, *why = stack.enter_context(_rival(file, *kind)).split()
            if why:
                remarks.append(f"{kind[0]} takes no part: {address} {' '.join(why)}")
                continue
            clients = [stack.enter_context(Client(address)) for _ in range(most)]
            runs[kind] = _requests(clients, model.name, inputs)
        best = [each for count in args.clients for each in _best(runs, count, args.seconds)]
    if args.json:
        print_json(best)
    else:
        _print(best)
    for remark in dict.fromkeys(remarks):
        print(textwrap.fill(remark, 100), file=sys.stderr)
    return 0


def _requests(clients: Sequence[Client], name: str, inputs: Mapping[str, Any]) -> Run:
    return lambda number: clients[number].infer(name, inputs)


def _file_of(model: Model) -> Path:
    """Path of the file that a server on this machine keeps for other runtimes."""
    from braid.server.settings import default_store

    store = Path(os.environ.get("BRAID_STORE") or default_store())
    return store / "artefacts" / model.sha256 / "model.onnx"


@contextmanager
def _rival(file: Path, runtime: str, threads: int) -> Iterator[str]:
    """Serve a file in another runtime; yields its address, or a sentence that says why not."""
    command = python_command("braid.server.cli.local.rival", runtime, str(threads), str(file))
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline() or f"it ended with exit code {process.wait()}"
        finally:
            process.kill()


def _best(runs: Mapping[Kind, Run], clients: int, seconds: float) -> list[Measured]:
    """Measure all runs in turns; returns one of each runtime."""
    taken: dict[Kind, list[float]] = {key: [] for key in runs}
    elapsed = dict.fromkeys(runs, 0.0)
    with ThreadPoolExecutor(clients) as pool:
        for _ in range(TURNS):
            for key, run in runs.items():
                list(pool.map(run, range(clients)))  # warm
                began = perf_counter()
                repeat = [pool.submit(_repeat, run, n, seconds / TURNS) for n in range(clients)]
                taken[key] += chain.from_iterable(each.result() for each in repeat)
                elapsed[key] += perf_counter() - began
    best: dict[str, Measured] = {}
    for (runtime, threads), latencies in taken.items():
        p50, p99 = np.percentile(latencies, (50, 99)) * 1e6
        rate = len(latencies) / elapsed[runtime, threads]
        if runtime not in best or rate > best[runtime].requests_per_second:
            best[runtime] = Measured(clients, runtime, threads, float(p50), float(p99), rate)
    return list(best.values())


def _repeat(run: Run, number: int, seconds: float) -> list[float]:
    latencies, end = list[float](), perf_counter() + seconds
    while not latencies or perf_counter() < end:
        began = perf_counter()
        run(number)
        latencies.append(perf_counter() - began)
    return latencies


def _print(measured: Sequence[Measured]) -> None:
    served = {each.clients: each for each in measured if each.runtime == SERVED}
    numbers = ("p50", "p99", "requests/s", "of braid's")
    print_table(
        ("clients", "runtime", "threads", *numbers),
        (
            (
                each.clients,
                each.runtime,
                each.threads or "",
                duration_text(each.p50_us),
                duration_text(each.p99_us),
                f"{each.requests_per_second:.1f}",
                f"{each.requests_per_second / served[each.clients].requests_per_second:.2f}x",
            )
            for each in measured
        ),
        right=("clients", "threads", *numbers),
    )
    print("all through gRPC; the others in a small server on this machine")
