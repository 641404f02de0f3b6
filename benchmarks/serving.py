"""What Braid's front end and worker cost: latency and throughput against a bare gRPC echo.

    python -m benchmarks.serving --out benchmarks/results/serving.json

A model that does next to nothing (1x3x224x224 float32 times 2) is served by ``braid serve`` on a
temporary store, and the same message is sent to a grpc.aio server that returns it. Servers and
clients are processes of their own. Both servers run throughout and are loaded in turns, the order
changing from round to round, so that drift of the machine meets both alike:

    round 1: echo braid    round 2: braid echo    round 3: echo braid ...

Reported are medians over the rounds and the ratio of braid's to echo's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from benchmarks import environment
from benchmarks.load.processes import (
    LoadGenerators,
    braid_endpoint,
    echo_endpoint,
    load_generators,
)
from benchmarks.load.records import Endpoint, Job
from benchmarks.load.results import Turn, compare, progress, summarise, table

SHAPE = (1, 3, 224, 224)
SCALE = 2.0
DEFAULT_OUT = environment.REPOSITORY / "benchmarks" / "results" / "local" / "serving.json"


def identity_like(path: Path) -> Path:
    """Write an ONNX model y = x * 2 with an open batch."""
    dims: list[str | int | None] = ["batch", *SHAPE[1:]]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        "identity_like",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        [helper.make_tensor("scale", TensorProto.FLOAT, [], [SCALE])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def measure(
    endpoints: Sequence[Endpoint], generators: LoadGenerators, options: argparse.Namespace
) -> list[Turn]:
    """Load the endpoints in turns, for each number of clients."""
    turns = []
    for clients in options.clients:
        for number in range(options.rounds):
            for endpoint in endpoints if number % 2 == 0 else reversed(endpoints):
                job = Job(
                    address=endpoint.address,
                    model=endpoint.model,
                    scale=endpoint.scale,
                    shape=SHAPE,
                    clients=clients,
                    warmup_s=options.warmup,
                    measure_s=options.seconds,
                )
                turns.append(summarise(endpoint, clients, number, generators.run(job)))
                print(progress(turns[-1]), file=sys.stderr)
    return turns


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--clients", type=_numbers, default=[1, 16], help="e.g. 1,16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured, per turn")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before that")
    parser.add_argument("--generators", type=int, default=1, help="processes of clients")
    parser.add_argument("--batch-sizes", type=_numbers, default=[1, 4, 16], help="to schedule")
    parser.add_argument("--target", type=float, help="fail if a p50 ratio is larger than this")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if a request failed or the target was missed."""
    options = _options(arguments)
    facts = environment.describe("grpcio", "protobuf", "torch", "numpy")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-serving-")))
        model = identity_like(folder / "identity_like.onnx")
        endpoints = [
            stack.enter_context(echo_endpoint()),
            stack.enter_context(braid_endpoint(model, SCALE, options.batch_sizes, folder)),
        ]
        generators = stack.enter_context(load_generators(options.generators))
        turns = measure(endpoints, generators, options)
    comparisons = [compare(turns, clients) for clients in options.clients]
    report = {
        "benchmark": "serving",
        "environment": facts,
        "shape": SHAPE,
        "comparisons": [asdict(each) for each in comparisons],
        "turns": [asdict(turn) for turn in turns],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(comparisons))
    missed = options.target and any(c.ratio["p50_us"] > options.target for c in comparisons)
    return 1 if missed or any(turn.errors for turn in turns) else 0


if __name__ == "__main__":
    sys.exit(main())
