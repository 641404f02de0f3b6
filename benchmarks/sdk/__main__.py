"""Latency of a request with braid_client beside the same request with tritonclient.

    python -m benchmarks.sdk [--kinds sync,aio] [--requests small,large] [--out FILE]

Both SDKs ask one ``braid serve``: braid_client with ``braid.v1``, tritonclient with the Open
Inference Protocol. Each is a process of its own; they take turns, in another order each round.
Reported are medians over the rounds, their ratio, and the ratio in each round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import environment
from benchmarks.load.children import module, read_line, running
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import export_onnx
from benchmarks.networks.one_operator import write_scaled
from benchmarks.reports import LOCAL, write_report
from benchmarks.sdk.clients import AIO, SYNC, Job, Turn
from benchmarks.states import add_state, by_state, in_state

SDKS = ("braid", "triton")
KINDS = tuple(dict.fromkeys(kind for _, kind in (*SYNC, *AIO)))
WARMUP_PART = 0.2  # of a turn's requests
DEFAULT_OUT = LOCAL / "sdk.json"


@dataclass(frozen=True, slots=True)
class Request:
    """Model and what is sent to it."""

    model: str
    input: str
    output: str
    shape: tuple[int, ...]


REQUESTS: Mapping[str, Request] = {
    "small": Request("small", "x", "y", (1, 8)),  # 32 bytes in and out
    "large": Request("large", "x", "y", (1, 3, 224, 224)),  # 600 KB in and out
    "squeezenet": Request("squeezenet", "image", "logits", (1, 3, 224, 224)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One request made in one way: medians of p50 in microseconds, and braid's to triton's."""

    request: str
    kind: str
    braid_us: float
    triton_us: float
    ratio: float
    ratio_by_round: Sequence[float]


def p50_us(turn: Turn) -> float:
    """Median latency after the warm-up."""
    return statistics.median(turn.latency_us[int(len(turn.latency_us) * WARMUP_PART) :])


def _write(request: Request, folder: Path) -> Path:
    path = folder / f"{request.model}.onnx"
    if request.model == "squeezenet":
        export_onnx("squeezenet", path, seed=0)
        return path
    return write_scaled(path, request.shape[1:], 2.0)


def _start(names: Sequence[str], folder: Path, stack: ExitStack) -> str:
    first, *others = (_write(REQUESTS[name], folder) for name in names)
    server = stack.enter_context(braid_server(folder / "store"))
    server.client.register(first.stem, first, batch_sizes=[1], wait=True, timeout_s=120.0)
    for path in others:
        server.client.register(path.stem, path, planner="sequential", wait=True, timeout_s=300.0)
    return server.address


def measure(
    address: str,
    names: Sequence[str],
    kinds: Sequence[str],
    rounds: int,
    seconds: float,
    state: str = "",
) -> list[Row]:
    rows = []
    with ExitStack() as stack:
        command = module("benchmarks.sdk.clients")
        processes = {sdk: stack.enter_context(running(command)) for sdk in SDKS}

        def hold(name: str, kind: str, number: int) -> dict[str, Turn]:
            request, turns = asdict(REQUESTS[name]), dict[str, Turn]()
            for sdk in SDKS if number % 2 == 0 else reversed(SDKS):
                job = Job(sdk=sdk, kind=kind, address=address, seconds=seconds, **request)
                turns[sdk] = _run(processes[sdk], job)
            return turns

        for name in names:
            for kind in kinds:
                p50s: dict[str, list[float]] = {sdk: [] for sdk in SDKS}
                checksums = set()
                for number in range(rounds):
                    turns = in_state(state, partial(hold, name, kind, number))
                    for sdk, turn in turns.items():
                        p50s[sdk].append(p50_us(turn))
                        checksums.add(round(turn.checksum, 1))
                if len(checksums) > 1:
                    raise RuntimeError(f"the SDKs disagree about {name}: {checksums}")
                rows.append(_row(name, kind, p50s))
                print(_line(rows[-1]), file=sys.stderr)
    return rows


def _run(process: subprocess.Popen[str], job: Job) -> Turn:
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(job)) + "\n")
    process.stdin.flush()
    return Turn(**json.loads(read_line(process)))


def _row(name: str, kind: str, p50s: Mapping[str, Sequence[float]]) -> Row:
    braid, triton = (statistics.median(p50s[sdk]) for sdk in SDKS)
    by_round = [ours / theirs for ours, theirs in zip(p50s["braid"], p50s["triton"], strict=True)]
    return Row(name, kind, braid, triton, braid / triton, by_round)


def _line(row: Row) -> str:
    by_round = " ".join(f"{ratio:.2f}" for ratio in row.ratio_by_round)
    return (
        f"{row.request:10} {row.kind:10} {row.braid_us:8.0f} {row.triton_us:9.0f} "
        f"{row.ratio:6.2f}   {by_round}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sdk")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--requests", default=",".join(REQUESTS), help="of " + ", ".join(REQUESTS))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    parser.add_argument("--address", help="of a server that has the models, instead of an own one")
    add_state(parser)
    return by_state(parser.parse_args(arguments), _compare)


def _compare(options: argparse.Namespace) -> int:
    names, kinds = options.requests.split(","), options.kinds.split(",")
    facts = environment.describe("grpcio", "protobuf", "numpy", "tritonclient")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-sdk-")))
        address = options.address or _start(names, folder, stack)
        rows = measure(address, names, kinds, options.rounds, options.seconds, options.state)
    report = {"benchmark": "sdk", "environment": facts, "rows": [asdict(row) for row in rows]}
    write_report(options.out, report)
    print(f"{'request':10} {'kind':10} {'braid us':>8} {'triton us':>9} {'ratio':>6}   by round")
    print("\n".join(map(_line, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
