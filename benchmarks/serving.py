"""What serving costs: latency and throughput beside a bare gRPC echo and others.

    python -m benchmarks.serving --out benchmarks/results/serving.json
    python -m benchmarks.serving --endpoint triton=HOST:8001/doubling

A model that does next to nothing (1x3x224x224 float32 times 2) is served by ``braid serve`` on a
temporary store; the same message goes to a grpc.aio server that returns it, and to every other
endpoint of the Open Inference Protocol that is named. Servers and clients are processes of their
own. All servers run throughout and are loaded in turns, the order changing from round to round,
so that drift of the machine meets all alike:

    round 1: echo braid ...    round 2: ... braid echo    round 3: echo braid ...

Reported are medians over the rounds and their ratios to the echo's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks import environment
from benchmarks.load.processes import (
    LoadGenerators,
    braid_endpoint,
    echo_endpoint,
    load_generators,
)
from benchmarks.load.records import Endpoint, Job
from benchmarks.load.results import Comparison, Load, Turn, compare, progress, summarise, table
from benchmarks.networks.one_operator import write_scaled
from benchmarks.reports import LOCAL, numbers, write_report
from benchmarks.states import add_state, by_state, in_state

SHAPE = (1, 3, 224, 224)
SCALE = 2.0
DEFAULT_OUT = LOCAL / "serving.json"


def measure(
    endpoints: Sequence[Endpoint], generators: LoadGenerators, options: argparse.Namespace
) -> list[Turn]:
    turns: list[Turn] = []

    def hold(load: Load, number: int) -> list[Turn]:
        held = []
        for endpoint in endpoints if number % 2 == 0 else reversed(endpoints):
            job = Job(
                address=endpoint.address,
                model=endpoint.model,
                scale=endpoint.scale,
                shape=SHAPE,
                clients=load.clients,
                warmup_s=options.warmup,
                measure_s=options.seconds,
                rate_per_s=load.rate_per_s,
                shared_memory=endpoint.shared_memory,
                seed=number,
            )
            held.append(summarise(endpoint, load, number, generators.run(job)))
            print(progress(held[-1]), file=sys.stderr)
        return held

    for load in _loads(options):
        for number in range(options.rounds):
            turns += in_state(options.state, partial(hold, load, number))
    return turns


def _loads(options: argparse.Namespace) -> Iterator[Load]:
    for clients in options.clients:
        yield Load(clients)
    for rate in options.rates:
        yield Load(options.open_clients, float(rate))


def _endpoints(options: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Endpoint]:
    model = write_scaled(folder / "identity_like.onnx", SHAPE[1:], SCALE)
    braid = stack.enter_context(braid_endpoint(model, SCALE, options.batch_sizes, folder))
    endpoints = [stack.enter_context(echo_endpoint()), braid]
    if options.untuned_echo:
        endpoints.append(stack.enter_context(echo_endpoint(keeps_freed_memory=False)))
    if options.shared_memory:
        endpoints.append(replace(braid, name="braid-shm", shared_memory=True))
    return [*endpoints, *options.endpoint]


def _endpoint(text: str) -> Endpoint:
    name, _, rest = text.partition("=")
    address, _, model = rest.partition("/")
    if not (name and address and model):
        raise argparse.ArgumentTypeError("write NAME=HOST:PORT/MODEL")
    return Endpoint(name, address, model, SCALE)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--clients", type=numbers, default=[1, 16], help="closed loop: 1,4,64")
    parser.add_argument("--rates", type=numbers, default=[], help="open loop: requests/s: 100,400")
    parser.add_argument("--open-clients", type=int, default=16, help="connections of the open loop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured, per turn")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before that")
    parser.add_argument("--generators", type=int, default=1, help="processes of clients")
    parser.add_argument("--batch-sizes", type=numbers, default=[1, 4, 16], help="to schedule")
    parser.add_argument("--shared-memory", action="store_true", help="Braid that way, too")
    parser.add_argument("--untuned-echo", action="store_true", help="an echo as a user writes it")
    parser.add_argument(
        "--endpoint",
        type=_endpoint,
        action="append",
        default=[],
        help="NAME=HOST:PORT/MODEL, which doubles FP32 x of 1x3x224x224 into y",
    )
    parser.add_argument("--target", type=float, help="fail if Braid's p50 ratio is larger")
    add_state(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if a closed-loop request failed or the target was missed."""
    return by_state(_options(arguments), _run)


def _run(options: argparse.Namespace) -> int:
    facts = environment.describe("grpcio", "protobuf", "torch", "numpy", "tritonclient")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-serving-")))
        endpoints = _endpoints(options, folder, stack)
        generators = stack.enter_context(load_generators(options.generators))
        turns = measure(endpoints, generators, options)
    comparisons = compare(turns)
    report = {
        "benchmark": "serving",
        "environment": facts,
        "shape": SHAPE,
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "turns": [asdict(turn) for turn in turns],
    }
    write_report(options.out, report)
    print(table(comparisons))
    return 1 if _failed(comparisons, options.target) else 0


def _failed(comparisons: Sequence[Comparison], target: float | None) -> bool:
    closed = [comparison for comparison in comparisons if comparison.load.rate_per_s is None]
    missed = target and any(c.ratio["p50_us"] > target for c in closed if c.endpoint == "braid")
    return bool(missed) or any(comparison.errors for comparison in closed)


if __name__ == "__main__":
    sys.exit(main())
