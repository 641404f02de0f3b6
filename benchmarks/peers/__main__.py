"""Compare Braid with other servers: ``python -m benchmarks.peers [--quick] --out FOLDER``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks import environment
from benchmarks.peers.hosting.contract import SERVERS, Contender, find_contenders
from benchmarks.peers.hosting.environments import SetupFailed, python_of
from benchmarks.peers.hosting.servers import Hosting
from benchmarks.peers.load.client import client_process
from benchmarks.peers.load.loops import WRONG
from benchmarks.peers.models import NAMES, prepare
from benchmarks.peers.records import BATCHINGS, DYNAMIC, Case, path_of, read_cases, write_case
from benchmarks.peers.report import write_report
from benchmarks.peers.rounds import Course, run_course, started
from benchmarks.peers.stands import Stand
from benchmarks.reports import fill, names, numbers
from benchmarks.states import add_state, by_state
from braid.core.allowance import cpu_allowance

DEFAULT_OUT = environment.REPOSITORY / "benchmarks" / "results" / "local" / "peers"


def measure(model: str, batching: str, options: argparse.Namespace) -> Case:
    prepared = prepare(model, options.model_files)
    facts = environment.describe("grpcio", "numpy", "onnxruntime", "tritonclient")
    case = Case(model, batching, facts, options.threads)
    pace = options.warmup, options.seconds
    course = Course(options.rounds, options.clients, options.parts, *pace, options.state)
    with tempfile.TemporaryDirectory(prefix="braid-peers-") as folder:
        stands = []
        for contender in options.peers:
            if contender.serves(model):
                sizes = _batch_sizes(contender, batching, options)
                hosting = Hosting(prepared.file, model, options.threads, sizes)
                stands.append(Stand(contender, prepared, hosting, Path(folder)))
        case.rows = {stand.contender.name: stand.row for stand in stands}
        with client_process() as clients, started(stands):
            run_course(course, stands, clients, case)
    return case


def _batch_sizes(contender: Contender, batching: str, options: argparse.Namespace) -> Sequence[int]:
    is_dynamic = batching == DYNAMIC and contender.dynamic_batching
    return tuple(options.batch_sizes) if is_dynamic else (1,)


def _parts(text: str) -> list[float]:
    return [int(part) / 100 for part in text.split(",") if part]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of the results")
    parser.add_argument("--models", type=names, default=list(NAMES), help=",".join(NAMES))
    parser.add_argument("--peers", type=names, default=[], help="contenders; default: all")
    parser.add_argument("--batching", type=names, default=list(BATCHINGS), help="off,dynamic")
    parser.add_argument("--batch-sizes", type=numbers, default=[1, 2, 4, 8], help="if dynamic")
    parser.add_argument("--clients", type=numbers, default=[1, 4, 16], help="of closed loops")
    parser.add_argument("--parts", type=_parts, default=[0.5, 0.8], help="open loops: 50,80 %%")
    parser.add_argument("--threads", type=int, default=cpu_allowance().threads)
    parser.add_argument("--rounds", type=int, help="5; 1 if quick")
    parser.add_argument("--seconds", type=float, help="measured, a turn, at least: 1; 0.3")
    parser.add_argument("--warmup", type=float, help="seconds before that: 0.3; 0.1")
    parser.add_argument("--model-files", type=Path, help="folder of the ONNX files; default: OUT")
    parser.add_argument("--servers", type=Path, default=SERVERS, help="folder of the peers")
    parser.add_argument(
        "--setup", action="store_true", help="make the environments, measure nothing"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what is in OUT")
    parser.add_argument("--report", action="store_true", help="measure nothing; tables of OUT")
    parser.add_argument("--quick", action="store_true", help="one round of short turns")
    add_state(parser)
    options = parser.parse_args(arguments)
    usual = {"rounds": 5, "seconds": 1.0, "warmup": 0.3}
    quick = {"rounds": 1, "seconds": 0.3, "warmup": 0.1}
    fill(options, quick if options.quick else usual)
    options.model_files = options.model_files or options.out / "models"
    try:
        options.peers = find_contenders(options.peers, options.servers)
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison.

    Returns 1 if a contender failed, gave a wrong answer or has no environment.
    """
    signal.signal(signal.SIGTERM, _end)
    return by_state(_options(arguments), _run)


def _run(options: argparse.Namespace) -> int:
    try:
        for contender in [] if options.report else options.peers:
            if any(map(contender.serves, options.models)):
                python_of(contender)
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return 1
    if options.setup:
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        _measure_all(options)
    cases = list(read_cases(options.out))
    print(write_report(cases, options.out))
    return 1 if any(map(_is_bad, cases)) else 0


def _measure_all(options: argparse.Namespace) -> None:
    for model in options.models:
        for batching in options.batching:
            if not (options.resume and path_of(options.out, model, batching).exists()):
                write_case(measure(model, batching, options), options.out)


def _is_bad(case: Case) -> bool:
    is_failed = any(row.failed for row in case.rows.values())
    return is_failed or any(WRONG in turn.errors for turn in case.turns)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
