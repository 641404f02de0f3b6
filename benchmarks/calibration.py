"""What precision ``auto`` serves of each network within an error, and how far INT8 errs.

    python -m benchmarks.calibration --networks squeezenet,resnet50 --error 0.01 --out FOLDER

Samples are inputs that the benchmark's networks make of seeds of their own. Each network is
compiled with ``braid.compile`` and the sequential planner in an empty store: the sequential plans
of FP32, BF16 and INT8 run in turns. Weights of the networks are random: their outputs hardly depend
on the inputs, and errors of trained networks are others. ``--model FILE --samples FILE.npz`` takes
any model.
Prints a line for each network and writes calibration.json after each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import describe
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS
from benchmarks.reports import write_report
from benchmarks.states import add_state, by_state, in_state
from braid.core.precision import AUTO
from braid.core.quantisation import quantisation_text
from braid.library.compiling import compile

SEEDS = range(100, 124)


def samples_of(name: str) -> dict[str, np.ndarray[Any, Any]]:
    network = NETWORKS[name]
    rows = [network.example_inputs(1, seed=seed) for seed in SEEDS]
    return {
        name: np.concatenate([row[position].numpy() for row in rows])
        for position, name in enumerate(network.input_names)
    }


def measure(model: Path, samples: Any, error: float) -> dict[str, Any]:
    """What serves within an error, and all that ran against it."""
    with (
        tempfile.TemporaryDirectory() as store,
        compile(
            model,
            samples=samples,
            store=store,
            precision=AUTO,
            accept_error=error,
            planner="sequential",
        ) as net,
    ):
        schedule = net.schedule.document
    provenance = schedule.provenance
    return {
        "serves": schedule.precision,
        "speedup": None if schedule.speed is None else schedule.speed.median,
        "candidates": {
            candidate.precision: {
                "ms": None if candidate.latency_us is None else candidate.latency_us / 1e3,
                "error": candidate.max_rel_error,
                "remark": candidate.remark,
            }
            for candidate in provenance.candidates
        },
        "integers": ""
        if provenance.quantisation is None
        else quantisation_text(provenance.quantisation),
        "top_agreement": provenance.top_agreement,
        "left_out": dict(provenance.left_out),
    }


def print_line(name: str, row: dict[str, Any]) -> None:
    cells = [
        f"{precision} {_number(candidate['ms'], '.2f')} ms {_number(candidate['error'], '.2g')}"
        for precision, candidate in row["candidates"].items()
    ]
    print(f"{name:14} serves {row['serves']:5}", *cells, row["integers"], sep="  ", flush=True)


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", default="")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--error", type=float, default=0.01)
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/local"))
    add_state(parser)
    return by_state(parser.parse_args(), _run)


def _run(args: argparse.Namespace) -> int:
    environment = describe("torch", "onednn-cpu-gomp")
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model, samples in _cases(args, Path(folder)):
            hold = partial(measure, model, samples, args.error)
            results[name] = in_state(args.state, hold)
            print_line(name, results[name])
            document = {"environment": environment, "error": args.error, "networks": results}
            write_report(args.out / "calibration.json", document)
    return 0


def _cases(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, Any]]:
    for name in filter(None, args.networks.split(",")):
        yield name, model_file(name, args.models or folder), samples_of(name)
    if args.model is not None:
        yield args.model.stem, args.model, args.samples


if __name__ == "__main__":
    sys.exit(main())
