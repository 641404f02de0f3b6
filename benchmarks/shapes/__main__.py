"""Random lengths and sizes: Braid beside servers around sessions with open shapes.

    python -m benchmarks.shapes --transformers FOLDER --json benchmarks/results/shapes.json
    python -m benchmarks.shapes --quick
    python -m benchmarks.shapes --models resnet18 --contenders braid --churn 20000

    first   every new shape once, later again       ──> first over repeated, of the same shape
    load    1, 4 and 16 clients, log-normal and     ──> p50, p99, requests/s; Braid over the best
            uniform lengths, other ones each round      of the others, ratios of medians
    shapes  2,000 different ones, one client,       ──> memory; the neighbour's p99 alone, beside
            beside requests of another model            repeated shapes, beside new ones

Servers are processes of their own and take turns with the same requests. A sample of all answers is
compared with ONNX Runtime's on the same request alone; the exit status is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

from benchmarks import environment
from benchmarks.peers.hosting.contract import SERVERS, Contender, find_contenders
from benchmarks.peers.hosting.servers import Hosting
from benchmarks.peers.load.client import client_process
from benchmarks.peers.models import prepare
from benchmarks.peers.results import BRAID
from benchmarks.reports import LOCAL, fill, names, numbers, parser_of, refuse_unknown, write_report
from benchmarks.shapes.contenders import Neighbour, standing
from benchmarks.shapes.models import CASES, DISTRIBUTIONS, USUAL, ModelMissing, Oracle, model_file
from benchmarks.shapes.phases import Load, Pace, churn, first_requests, load_turns, warm_up
from benchmarks.shapes.report import Measured, cells, text
from benchmarks.shapes.traffic import Requests
from benchmarks.states import add_state, by_state
from braid.core.allowance import cpu_allowance

CONTENDERS = (BRAID, "thirty_lines_ort", "thirty_lines_openvino", "triton_ort", "infinity")
FIRST, LOAD, SHAPES = PHASES = ("first", "load", "shapes")
_SEED = 7
_USUAL = {
    "models": list(USUAL),
    "contenders": list(CONTENDERS),
    "clients": [1, 4, 16],
    "rounds": 3,
    "requests": 200,
    "new_lengths": 100,
    "repeats": 5,
    "shapes": 2000,
    "limit": 60.0,
    "shapes_limit": 600.0,
    "settle": 20.0,
    "batch_sizes": [1, 2, 4, 8],
    "register": [],
    "neighbour": "squeezenet",
    "neighbour_rate": 10.0,
    "neighbour_seconds": 20.0,
}
_QUICK = {
    "models": ["tiny"],
    "contenders": [BRAID, "thirty_lines_ort"],
    "clients": [1, 4],
    "rounds": 1,
    "requests": 16,
    "new_lengths": 6,
    "repeats": 2,
    "shapes": 40,
    "limit": 5.0,
    "shapes_limit": 5.0,
    "settle": 2.0,
    "batch_sizes": [1, 4],
    "register": ["--planner=sequential"],
    "neighbour": "identity",
    "neighbour_rate": 20.0,
    "neighbour_seconds": 1.0,
}


def measure(name: str, options: argparse.Namespace, measured: Measured) -> None:
    """Add to ``measured`` phase by phase, writing the report after each.

    Raises:
        ModelMissing: the model's file cannot be had.
    """
    case = CASES[name]
    file = model_file(case, options.model_files, options.transformers)
    oracle, pace = Oracle(file), Pace(options.limit, options.settle, options.checked)
    is_beside = SHAPES in options.phases
    neighbour = prepare(options.neighbour, options.model_files) if is_beside else None
    contenders = [contender for contender in options.contenders if contender.serves(name)]
    hosting = Hosting(file, case.name, options.threads, options.batch_sizes)
    with (
        tempfile.TemporaryDirectory(prefix="braid-shapes-") as folder,
        client_process() as clients,
        standing(contenders, hosting, neighbour, Path(folder)) as (stands, left_out),
    ):
        measured.left_out |= left_out
        measured.is_stress = bool(options.churn)
        measured.start_s |= {stand.name: round(stand.start_s, 1) for stand in stands}
        if options.warm_up:
            loads = [Load(lengths, 1, options.warm_up) for lengths in options.lengths]
            warm_up(stands, case, loads, pace)
            time.sleep(options.idle)
        if FIRST in options.phases:
            new = Requests(case, case.new(options.new_lengths, _SEED), _SEED)
            for first in first_requests(stands, new, options.repeats, pace, oracle):
                measured.first.append(first)
                _say(options, f"first requests: {first.contender}")
        if LOAD in options.phases:
            loads = [
                Load(lengths, clients, options.requests)
                for lengths in options.lengths
                for clients in options.clients
            ]
            for turn in load_turns(
                stands, case, loads, options.rounds, pace, oracle, options.state
            ):
                measured.turns.append(turn)
                _say(options, f"{turn.distribution} {turn.clients} clients: {turn.contender}")
        if neighbour is not None:
            beside = Neighbour(
                neighbour, options.neighbour_rate, min(5.0, options.neighbour_seconds), clients
            )
            shapes = Requests(case, case.cheapest(options.churn or options.shapes, _SEED), _SEED)
            churn_pace = Pace(options.shapes_limit, options.settle, options.checked)
            for row in churn(stands, shapes, beside, options.neighbour_seconds, churn_pace, oracle):
                measured.churn.append(row)
                _say(options, f"{row.answered} shapes: {row.contender}")
        measured.ended |= {stand.name: stand.failure for stand in stands if stand.failure}


def _say(options: argparse.Namespace, progress: str) -> None:
    print(progress, file=sys.stderr)
    _write(options)


def _write(options: argparse.Namespace) -> None:
    report = {
        "benchmark": "shapes",
        "environment": options.facts,
        "left_out": options.left_out,
        "models": {
            measured.model: {
                **asdict(measured),
                "cells": [asdict(cell) for cell in cells(measured.turns)],
            }
            for measured in options.measured
        },
    }
    write_report(options.json, report)


def _contenders(named: Sequence[str], servers: Path, braid: Sequence[str]) -> list[Contender]:
    """Find contenders; ``braid``: arguments of Braid's program.

    Raises:
        ValueError: there is no such contender.
    """
    contenders = []
    for contender in find_contenders(named, servers):
        if contender.name == BRAID:
            contender = replace(contender, arguments=(*contender.arguments, *braid))
        contenders.append(contender)
    return contenders


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("benchmarks.shapes", __doc__)
    parser.add_argument("--models", type=names, help=",".join(CASES))
    parser.add_argument("--contenders", type=names, help=",".join(CONTENDERS))
    parser.add_argument("--lengths", type=names, default=list(DISTRIBUTIONS), help="or sizes")
    parser.add_argument("--phases", type=names, default=list(PHASES), help=",".join(PHASES))
    parser.add_argument("--clients", type=numbers, help="of the loads: 1,4,16")
    parser.add_argument("--rounds", type=int, help="of the loads")
    parser.add_argument("--requests", type=int, help="of a turn, by all clients")
    parser.add_argument("--new-lengths", type=int, help="whose first requests are measured")
    parser.add_argument("--repeats", type=int, help="of those")
    parser.add_argument("--shapes", type=int, help="different ones beside the neighbour")
    parser.add_argument(
        "--churn", type=int, metavar="N", help="only that many different shapes: is memory flat?"
    )
    parser.add_argument("--limit", type=float, help="seconds of a turn; what is left is not sent")
    parser.add_argument("--shapes-limit", type=float, help="seconds for the different shapes")
    parser.add_argument("--settle", type=float, help="seconds after a turn to become idle, at most")
    parser.add_argument("--warm-up", type=int, default=0, help="requests that are not measured")
    parser.add_argument("--idle", type=float, default=0.0, help="seconds without any after those")
    parser.add_argument("--checked", type=int, default=10, help="answers compared, of each turn")
    parser.add_argument("--batch-sizes", type=numbers, help="of contenders that batch")
    parser.add_argument("--neighbour", help="the other model, as of benchmarks.peers")
    parser.add_argument("--neighbour-rate", type=float, help="its requests per second")
    parser.add_argument("--neighbour-seconds", type=float, help="of its quiet states")
    parser.add_argument("--threads", type=int, default=cpu_allowance().threads)
    parser.add_argument(
        "--register",
        action="append",
        metavar="OPTION",
        help="an option more of `braid register`: --register=--precision=bf16",
    )
    parser.add_argument("--stores", type=Path, help="folder of Braid's; plans there serve again")
    parser.add_argument("--servers", type=Path, default=SERVERS, help="folder of the peers")
    parser.add_argument("--transformers", type=Path, help="folder with that package, if needed")
    parser.add_argument("--model-files", type=Path, default=LOCAL / "shapes", help="kept there")
    parser.add_argument("--quick", action="store_true", help="a tiny model, few requests")
    parser.add_argument("--json", type=Path, help="write all figures here (JSON)")
    add_state(parser)
    options = parser.parse_args(arguments)
    fill(options, _QUICK if options.quick else _USUAL)
    for kind, given, known in (
        ("model", options.models, CASES),
        ("distribution", options.lengths, DISTRIBUTIONS),
        ("phase", options.phases, PHASES),
    ):
        refuse_unknown(parser, kind, given, known)
    if options.churn:
        options.phases = [SHAPES]
    try:
        braid = [f"--register={option}" for option in options.register]
        braid += [f"--stores={options.stores.absolute()}"] if options.stores else []
        options.contenders = _contenders(options.contenders, options.servers, braid)
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns 1 if an answer was wrong, a request failed, a contender ended, Braid did not start, or
    memory was not flat.
    """
    signal.signal(signal.SIGTERM, _end)
    return by_state(_options(arguments), _run)


def _run(options: argparse.Namespace) -> int:
    options.facts = environment.describe(
        "grpcio", "numpy", "onnxruntime", "openvino", "torch", "transformers"
    )
    options.measured, options.left_out = [], {}
    for name in options.models:
        measured = Measured(name)
        options.measured.append(measured)
        try:
            measure(name, options, measured)
        except ModelMissing as error:
            options.left_out[name] = str(error)
            print(f"{name} is left out: {error}", flush=True)
        else:
            print(text(measured), flush=True)
        _write(options)
    return 1 if any(measured.is_bad for measured in options.measured) else 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
