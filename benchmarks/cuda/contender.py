"""One contender on a GPU, alone in its process: ``python -m benchmarks.cuda.contender``.

Started by ``benchmarks.cuda.run``. It touches the GPU once it is told to. Once warm it prints
``ready`` and, as JSON, what it can run and what was seen on the way; then, for each
``{"run": NAME, "count": N}``, the milliseconds of N runs by both clocks, or an error. Two
contenders never run at once: they would share the device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda.agenda import BRAID
from benchmarks.cuda.clock import Timed, times
from benchmarks.cuda.peers import PEERS, fastest
from benchmarks.networks.registry import NETWORKS, inputs_of
from braid.core.precision import FP32, PRECISIONS
from braid.engine.timing.samples import TimerOptions


def main() -> None:
    args = _arguments()
    warnings.simplefilter("ignore")  # of compilers, about things that nobody here can change
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    sys.stdin.readline()
    with torch.inference_mode(args.contender == BRAID), torch.no_grad():
        runs, notes = _contenders(args)
        answers.write("ready\n")
        answers.write(json.dumps({"runs": list(runs), "notes": notes}) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps(_answer(runs, json.loads(line))) + "\n")


def _answer(runs: Mapping[str, Timed], asked: Mapping[str, Any]) -> Mapping[str, object]:
    """Times, or what went wrong: with one run out of memory, the others may go on."""
    try:
        return asdict(times(runs[asked["run"]], asked["count"]))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--contender", choices=[BRAID, *PEERS], required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default=FP32)
    parser.add_argument("--patience", type=float, required=True, help="seconds to become ready")
    parser.add_argument("--artefact", type=Path, help="of braid: the network as imported")
    parser.add_argument("--plans", type=Path, help="of braid: JSON, plan files and choices")
    return parser.parse_args()


def _contenders(args: argparse.Namespace) -> tuple[Mapping[str, Timed], Mapping[str, object]]:
    network = NETWORKS[args.network]
    if args.contender == BRAID:
        from benchmarks.cuda.ours import our_program, prepared_plans
        from braid.engine.cuda.opening import open_backend

        listed = json.loads(args.plans.read_text())
        plans = {name: Path(path) for name, path in listed["plans"].items()}
        backend = open_backend(1 << 30, TimerOptions(), 4)
        program = our_program(
            backend, network, args.batch, args.artefact, args.precision, listed["choices"]
        )
        return prepared_plans(backend, program, inputs_of(network, args.batch), plans)
    peer, notes = fastest(network, args.contender, args.batch, args.precision, args.patience)
    return {args.contender: peer}, {args.contender: notes}


if __name__ == "__main__":
    main()
