"""Braid's engine beside what a user would pick instead, and beside its own plans.

    python -m benchmarks.engine --networks squeezenet,googlenet --batches 1,8 --out FOLDER

Contenders: torch eager, torch.compile with freezing, ONNX Runtime in both modes, OpenVINO, every
plan of the portfolio (with ``--best`` the sequential and the best one), and what the portfolio
chose. With ``--precision bf16``, OpenVINO and Braid compute in it; with ``int8``, everyone runs the
same quantised ONNX file. All have the same number of threads. Each
runs in a process of its own, in turns with pauses between them, since the spinning pools of ONNX
Runtime and OpenMP would steal each other's cores inside one process:

    plan (in a device worker, as a server does) ─> start all contenders ─> rounds, order rotating

The portfolio's choice is measured once more under its own name only if that is another runtime,
which runs with other settings inside a worker; else its numbers are those of its plan.
Writes engine.json and prints who won.

    python -m benchmarks.engine --device cuda --minutes 9 --out FOLDER

does the same on a GPU, with other contenders: see ``benchmarks.cuda.run``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.contender_process import ContenderProcess
from benchmarks.contenders import OTHERS
from benchmarks.cuda import run
from benchmarks.cuda.agenda import PEERS
from benchmarks.engine_results import PORTFOLIO, Case, print_case, print_ratios, write
from benchmarks.environment import describe
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS
from benchmarks.planned import SearchedPlans, find_plans, imported, keep, kept
from benchmarks.reports import names, numbers, parser_of
from benchmarks.states import add_state, by_state, in_state
from braid.core.allowance import cpu_allowance
from braid.core.precision import FP32, INT8, PRECISIONS
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import SEQUENTIAL
from braid.engine.processes.environment import cpu_environment
from braid.scheduler.options import PlannerSettings


class Contender:
    """A process that runs a network when told."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        environment = cpu_environment() if name.startswith("braid") else os.environ
        self._process = ContenderProcess(name, command, log, environment)

    def wait_until_ready(self) -> None:
        assert self._process.line() == "ready"

    def run(self, count: int) -> list[float]:
        samples: list[float] = json.loads(self._process.ask(str(count)))
        return samples

    def end(self) -> None:
        self._process.end()


@contextmanager
def _started(
    case: Case, commands: Mapping[str, Sequence[str]], logs: Path
) -> Iterator[list[Contender]]:
    """Contenders, started one after the other; those that fail are noted and left out."""
    with ExitStack() as stack:
        ready = []
        for number, (name, command) in enumerate(commands.items()):
            contender = Contender(name, command, logs / f"{number}.log")
            stack.callback(contender.end)
            try:
                contender.wait_until_ready()
            except (RuntimeError, AssertionError) as error:
                case.failed[name] = str(error)
                print(f"  {name} does not run: {error}", file=sys.stderr)
            else:
                ready.append(contender)
        yield ready


def measure(
    case: Case, commands: Mapping[str, Sequence[str]], logs: Path, args: argparse.Namespace
) -> None:
    """Fill in the samples of one case: contenders in turns, the order rotating."""
    with _started(case, commands, logs) as contenders:
        counts = {}
        for contender in contenders:
            (first,) = contender.run(1)
            counts[contender.name] = max(1, min(50, round(args.turn * 1e3 / first)))
            case.samples_ms[contender.name] = []

        def hold(number: int) -> dict[str, list[float]]:
            first_one, samples_ms = number % len(contenders), dict[str, list[float]]()
            for contender in [*contenders[first_one:], *contenders[:first_one]]:
                time.sleep(args.pause)
                samples_ms[contender.name] = contender.run(counts[contender.name])
            return samples_ms

        for number in range(args.rounds):
            for name, samples_ms in in_state(args.state, partial(hold, number)).items():
                case.samples_ms[name] += samples_ms


def commands_of(
    case: Case, searched: SearchedPlans, model: Path, artefact: Path, args: argparse.Namespace
) -> dict[str, list[str]]:
    base = [sys.executable, "-m", "benchmarks.contenders", "--network", case.network]
    base += ["--batch", str(case.batch), "--threads", str(args.threads), "--model", str(model)]
    base += ["--artefact", str(artefact), "--precision", _computed_in(args)]
    others = [name for name in OTHERS if name not in args.without]
    if args.precision == INT8:  # the modules of torch are in FP32
        others = [name for name in others if not name.startswith("torch")]
    commands = {name: [*base, "--contender", name] for name in others}
    kernels = ["--kernels", json.dumps(dict(searched.choices))]
    for name, path in searched.plans.items():
        if args.best and name not in (SEQUENTIAL, searched.own, searched.portfolio):
            continue
        commands[f"braid {name}"] = [*base, "--contender", "braid", "--plan", str(path), *kernels]
    if searched.portfolio in RUNTIMES:
        commands[PORTFOLIO] = [*base, "--contender", "braid", "--runtime", searched.portfolio]
    return commands


def _computed_in(args: argparse.Namespace) -> str:
    """Precision of the schedules: FP32 for quantised files, which say what is rounded."""
    return FP32 if args.precision == INT8 else str(args.precision)


def _model_file(network: str, folder: Path, args: argparse.Namespace) -> Path:
    model = model_file(network, args.models or folder)
    if args.precision != INT8:
        return model
    quantised = folder / f"{network}-{INT8}.onnx"
    if not quantised.exists():
        from benchmarks.networks.quantised import export_quantised

        export_quantised(NETWORKS[network], model, quantised)
    return quantised


def _planned(network: str, batch: int, artefact: Path, args: argparse.Namespace) -> SearchedPlans:
    name = "-".join(filter(None, [network, str(batch), args.precision, args.state]))
    folder = artefact.parent / name
    searched = kept(folder)
    if searched is None:
        options = PlannerSettings.for_serving(args.planner)
        search = partial(find_plans, precision=_computed_in(args))
        searched = asyncio.run(search(artefact, batch, args.threads, folder, options))
        keep(searched, folder)
    return searched


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.engine", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--networks", type=names, help="default: all that matter")
    parser.add_argument("--batches", type=numbers, help="default: 1,8; on a GPU 1,8,32")
    parser.add_argument("--threads", type=int, default=cpu_allowance().threads)
    parser.add_argument(
        "--planner", default="", help="e.g. 'portfolio(gap=0.005,time_budget_s=60)'"
    )
    parser.add_argument(
        "--without",
        type=names,
        default=[],
        help=", ".join([*OTHERS, *PEERS]),
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=FP32,
        help="of the plans; of the others on a CPU, OpenVINO computes in it, too, the rest in "
        "FP32; int8: all run the same quantised file",
    )
    parser.add_argument("--best", action="store_true", help="leave out plans that are not the best")
    parser.add_argument("--plans", type=Path, help="folder where plans are kept for the next run")
    parser.add_argument("--plan-only", action="store_true", help="find plans, time nothing")
    parser.add_argument("--rounds", type=int, default=7)
    add_state(parser)
    parser.add_argument("--turn", type=float, default=0.3, help="seconds of runs in one turn")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds before each turn")
    parser.add_argument(
        "--models",
        type=Path,
        help="folder with NETWORK.onnx; exported if missing. On a GPU: the folder that "
        "benchmarks.cuda.prepare made",
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/local"))
    on_gpu = parser.add_argument_group("with --device cuda")
    on_gpu.add_argument("--minutes", type=float, default=9.0, help="for everything")
    on_gpu.add_argument("--earlier", type=Path, help="cuda.json to go on from")
    return parser


def main() -> int:
    args = _parser().parse_args()
    return run.main(args) if args.device == "cuda" else by_state(args, _run)


def _run(args: argparse.Namespace) -> int:
    args.networks = args.networks or [
        name for name in NETWORKS if "mobile" not in name and "small" not in name
    ]
    args.batches = args.batches or [1, 8]
    environment = describe("torch", "onnxruntime", "openvino")
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        work = args.plans or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for network in args.networks:
            model = _model_file(network, work, args)
            artefact = asyncio.run(imported(model, work / model.stem))
            for batch in args.batches:
                searched = _planned(network, batch, artefact, args)
                case = Case(network, batch, searched.portfolio, searched.own, searched.errors)
                if args.plan_only:
                    print(
                        f"{network}, batch {batch}: {searched.portfolio}; best own: {searched.own}"
                    )
                    continue
                logs = Path(temporary)
                measure(case, commands_of(case, searched, model, artefact, args), logs, args)
                print_case(case)
                cases.append(case)
                write(cases, environment, args.out)  # after each case: a run takes hours
    if cases:
        print_ratios(cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
