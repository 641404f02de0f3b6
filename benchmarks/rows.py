"""Requests of 1 to 16 rows: beside the cheapest cover of measured sizes, and beside ONNX Runtime.

    python -m benchmarks.rows squeezenet mnasnet mlp --json benchmarks/results/rows.json

    one server   {1} {4} {8} {16}, each a model of its own   ──> what a batch of each size takes
                 {1, 8}  {1, 4, 16}                          ──> over the cheapest cover of those
                 no sizes                                    ──> over thirty lines of ONNX Runtime

One client sends one request after the other, in rounds, the order drawn anew in each; servers and
client are processes of their own. ``compute`` is the device's time for all batches of a request,
and its cover is of such times; that of the client's time is of requests of whole batches, one after
the other. Figures are medians over all rounds; on a machine that others use, too, a lower
percentile (``--percentile 25``).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks import environment
from benchmarks.load.processes import BraidServer, braid_server
from benchmarks.networks import NETWORKS
from benchmarks.networks.network import Network
from benchmarks.networks.onnx_file import write_onnx
from benchmarks.networks.registry import arrays_of
from benchmarks.peers.hosting.contract import find_contenders
from benchmarks.peers.hosting.servers import Hosting, serving
from benchmarks.peers.load.calls import Target, connected
from benchmarks.peers.load.tensors import Question
from benchmarks.reports import cases_parser, numbers, write_report
from benchmarks.states import add_state, by_state, in_state
from braid.engine.runtime.threads import usable_cpus

SINGLE = (1, 4, 8, 16)
SETS = ((1, 8), (1, 4, 16))
TOLERANCE = 1e-3
"""Error of an answer relative to the output's largest element."""

ORT = "thirty_lines_ort"
DEFAULT = "default"


def _numbers(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 32, generator=generator),)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


CASES: Mapping[str, Network] = {
    **{name: NETWORKS[name] for name in ("squeezenet", "mnasnet", "resnet50", "deepfm")},
    "mlp": Network("mlp", _mlp, _numbers, ("x",), ("y",)),
}


@dataclass(slots=True)
class Cell:
    """Requests of some rows to one contender, in microseconds."""

    client_us: list[float] = field(default_factory=list)
    compute_us: list[float] = field(default_factory=list)  # empty: the server does not tell


Cells = dict[str, dict[int, Cell]]
"""By contender and rows."""

Ask = Callable[[], tuple[float, float | None]]
"""Sends a request; returns microseconds at the client, and on the device if the server tells."""


def name_of(sizes: Sequence[int]) -> str:
    return "_".join(map(str, sizes)) or DEFAULT


def questions_of(network: Network, file: Path, rows: Sequence[int]) -> dict[int, Question]:
    """Requests by rows, with ONNX Runtime's answers."""
    session = onnxruntime.InferenceSession(file)
    questions = {}
    for count in rows:
        inputs = arrays_of(network, count)
        outputs = session.run(list(network.output_names), inputs)
        answers = dict(zip(network.output_names, outputs, strict=True))
        questions[count] = Question(inputs, answers, TOLERANCE)
    return questions


def by_sdk(server: BraidServer, model: str, question: Question) -> tuple[float, float]:
    began = time.perf_counter()
    answer = server.client.infer(model, question.inputs, timeout_s=120.0)
    took_us = (time.perf_counter() - began) * 1e6
    if not question.is_answer([array.ravel() for array in answer.outputs.values()]):
        raise SystemExit(f"{model} answers wrongly")
    return took_us, float(answer.timing.compute_us)


def by_call(call: Callable[[int], Callable[[], bool]], number: int) -> tuple[float, None]:
    began = time.perf_counter()
    is_right = call(number)
    took_us = (time.perf_counter() - began) * 1e6
    if not is_right():
        raise SystemExit("wrong answer")
    return took_us, None


def run_rounds(
    asks: Mapping[tuple[str, int], Ask], rounds: int, calls: int, state: str = ""
) -> Cells:
    cells: Cells = {}

    def hold(number: int) -> dict[tuple[str, int], list[tuple[float, float | None]]]:
        order, samples_us = list(asks), {}
        random.Random(number).shuffle(order)
        for contender in order:
            asks[contender]()
            samples_us[contender] = [asks[contender]() for _ in range(calls)]
        return samples_us

    for number in range(rounds):
        for (contender, rows), samples_us in in_state(state, partial(hold, number)).items():
            cell = cells.setdefault(contender, {}).setdefault(rows, Cell())
            for client_us, compute_us in samples_us:
                cell.client_us.append(client_us)
                if compute_us is not None:
                    cell.compute_us.append(compute_us)
    return cells


def covers(latencies: Mapping[int, float], most: int) -> list[float]:
    """What 0 to ``most`` rows take in the cheapest batches: any of the sizes, padded or cut."""
    least = [0.0]
    for rows in range(1, most + 1):
        least.append(min(us + least[max(0, rows - size)] for size, us in latencies.items()))
    return least


def ratios(
    cells: Cells, rows: Sequence[int], usual: Callable[[Sequence[float]], float]
) -> dict[str, dict[int, float]]:
    """Ratios by table and number of rows; ``usual`` reduces the samples of a cell."""
    single = {size: cells[name_of([size])][size] for size in SINGLE}
    computing = {size: usual(cell.compute_us) for size, cell in single.items()}
    asking = {size: usual(cell.client_us) for size, cell in single.items()}
    tables: dict[str, dict[int, float]] = {}
    for sizes in SETS:
        computed = covers({size: computing[size] for size in sizes}, max(rows))
        asked = covers({size: asking[size] for size in sizes}, max(rows))
        row, name = cells[name_of(sizes)], f"{{{', '.join(map(str, sizes))}}}"
        tables[f"{name} compute over cover"] = {
            n: usual(row[n].compute_us) / computed[n] for n in rows
        }
        tables[f"{name} client over cover"] = {n: usual(row[n].client_us) / asked[n] for n in rows}
    tables["default over ONNX Runtime, client"] = {
        n: usual(cell.client_us) / usual(cells[ORT][n].client_us)
        for n, cell in sorted(cells[DEFAULT].items())
    }
    return tables


def text(network: str, tables: Mapping[str, Mapping[int, float]]) -> str:
    lines = [network]
    for name, row in tables.items():
        figures = "  ".join(f"{n}: {ratio:.2f}" for n, ratio in row.items())
        lines.append(f"  {name:34} worst {max(row.values()):.2f}   {figures}")
    return "\n".join(lines)


def measure(case: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Register a network in every way, and send the requests."""
    network, rows, more = CASES[case], options.rows, options.more
    file = write_onnx(network, folder / f"{case}.onnx")
    questions = questions_of(network, file, sorted({*rows, *more, *SINGLE}))
    (peer,) = find_contenders([ORT])
    with ExitStack() as stack:
        server = stack.enter_context(braid_server(folder / "store"))
        for sizes in (*((size,) for size in SINGLE), *SETS, ()):
            server.client.register(
                name_of(sizes),
                file,
                batch_sizes=sizes,
                planner=options.planner,
                wait=True,
                timeout_s=600.0,
            )
        hosting = Hosting(file, case, len(usable_cpus()), (1,))
        other = stack.enter_context(serving(peer, hosting, folder / peer.name))
        other.await_line("READY")
        asks: dict[tuple[str, int], Ask] = {}
        for size in SINGLE:
            name = name_of([size])
            asks[name, size] = partial(by_sdk, server, name, questions[size])
        for sizes in SETS:
            for n in rows:
                asks[name_of(sizes), n] = partial(by_sdk, server, name_of(sizes), questions[n])
        counts = sorted({*rows, *more})
        for name, address, model in (
            (DEFAULT, server.address, DEFAULT),
            (ORT, other.address, case),
        ):
            target = Target(address, model, timeout_s=120.0)
            call = stack.enter_context(connected(target, [questions[n] for n in counts]))
            asks |= {(name, n): partial(by_call, call, at) for at, n in enumerate(counts)}
        cells = run_rounds(asks, options.rounds, options.calls, options.state)
        schedules = [asdict(plan) for plan in server.client.model(DEFAULT).schedules]

    def usual(samples: Sequence[float]) -> float:
        return float(np.percentile(samples, options.percentile))

    tables = ratios(cells, rows, usual)
    print(text(case, tables), flush=True)
    figures = {
        name: {
            n: [round(usual(us)) if us else None for us in (cell.client_us, cell.compute_us)]
            for n, cell in sorted(row.items())
        }
        for name, row in cells.items()
    }
    return {"client and compute us": figures, "ratios": tables, "default serves": schedules}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cases_parser("benchmarks.rows", CASES)
    parser.add_argument("--rows", type=numbers, default=[*range(1, 17)])
    parser.add_argument("--more", type=numbers, default=[], help="rows without sizes: 1000,10000")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=3, help="that count, of each cell in a round")
    parser.add_argument("--planner", default="", help="of the registrations; '': the usual one")
    parser.add_argument("--percentile", type=float, default=50.0, help="of the samples of a cell")
    add_state(parser)
    return by_state(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> int:
    report: dict[str, object] = {
        "environment": environment.describe("torch", "onnxruntime", "grpcio")
    }
    for case in options.cases:
        with tempfile.TemporaryDirectory(prefix="braid-rows-") as folder:
            report[case] = measure(case, Path(folder), options)
        write_report(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
