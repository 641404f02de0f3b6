"""What a plan takes when it serves, beside what it took when it was compared.

    python -m benchmarks.served squeezenet googlenet --out benchmarks/results/served.json
    python -m benchmarks.served squeezenet --during inception_v3 --models FOLDER

    one server:       register A, wait ─> after: one client asks A ─> during: the same beside a
                                                                      registration of B
    another server,   A from the store ─> quiet: one client asks A; no process measures any more
    the same store:

Compared is the median of the plan that serves in the comparison at its registration; served is the
median of the device's time for a request (``compute_us`` of the answers), copies included. What
the client sees is its own median, of a closed loop with ``--pause`` milliseconds between an answer
and the next request.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from numpy.typing import NDArray

from benchmarks import environment
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS, arrays_of
from benchmarks.reports import LOCAL, names, parser_of, write_report
from benchmarks.states import add_state, by_state, in_state
from braid_client import BraidError, Client, ModelState

DEFAULT_OUT = LOCAL / "served.json"
WARM_UPS = 20
LONGEST_S = 600.0

Inputs = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One client's requests in one state of the server."""

    requests: int
    compute_us: float  # median
    client_us: float  # median
    client_p99_us: float
    ratio: float  # compute_us over the compared latency


@dataclass(slots=True)
class Served:
    """One network: the plan that serves, how it was compared, how it served."""

    network: str
    planner: str
    plan_id: str  # of the answers
    compared_us: float
    spread: float | None
    registered_s: float
    phases: dict[str, Phase] = field(default_factory=dict)


def requests(
    client: Client, name: str, inputs: Inputs, pause_s: float, is_over: Callable[[], bool]
) -> Iterator[tuple[float, int, str]]:
    """Ask one model again and again; yields microseconds at the client, on the device, plan id."""
    while not is_over():
        began = time.perf_counter()
        answer = client.infer(name, inputs, timeout_s=60.0)
        took_s = time.perf_counter() - began
        yield took_s * 1e6, answer.timing.compute_us, answer.plan_id
        if pause_s:
            time.sleep(pause_s)


def observe(client: Client, served: Served, pause_s: float, is_over: Callable[[], bool]) -> Phase:
    """Ask a served network until ``is_over`` and reduce the samples."""
    inputs = arrays_of(NETWORKS[served.network])
    for _ in range(WARM_UPS):
        served.plan_id = client.infer(served.network, inputs).plan_id
    samples = list(requests(client, served.network, inputs, pause_s, is_over))
    client_us, compute_us, _ = zip(*samples, strict=True)
    computing_us = median(compute_us)
    return Phase(
        requests=len(samples),
        compute_us=computing_us,
        client_us=median(client_us),
        client_p99_us=quantiles(client_us, n=100, method="inclusive")[98],
        ratio=computing_us / served.compared_us,
    )


def register(client: Client, name: str, model: Path) -> Served:
    """Register a network at batch 1 unless the store has it; returns how it was compared."""
    began = time.monotonic()
    if name not in {registered.name for registered in client.models()}:
        client.register(name, model, wait=True, timeout_s=LONGEST_S)
    (plan,) = (plan for plan in client.model(name).schedules if plan.batch_size == 1)
    compared_us = plan.measured_us if plan.promoted else plan.sequential_us
    spread = plan.spread if plan.promoted else plan.sequential_spread
    planner = plan.planner if plan.promoted else "sequential"
    return Served(name, planner, "", compared_us, spread, time.monotonic() - began)


@contextmanager
def beside_a_registration(client: Client, name: str, model: Path) -> Iterator[Callable[[], bool]]:
    """Register a network in the block, which gets a function that tells whether that is over.

    At its end a registration that is not over is cancelled, and the network is deleted.
    """
    over = threading.Event()
    job = client.register(f"{name}_beside", model)

    def wait() -> None:
        with suppress(BraidError):
            for _ in client.watch_job(job.id, timeout_s=LONGEST_S):
                pass
        over.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield over.is_set
    finally:
        with suppress(BraidError):
            client.cancel_job(job.id)
        waiting.join()
        with suppress(BraidError):  # a cancelled one is gone
            client.delete(f"{name}_beside")


def measure(args: argparse.Namespace, store: Path, models: Path) -> list[Served]:
    all_served = []
    for name in args.networks:
        with braid_server(store) as server:
            client = server.client
            served = register(client, name, model_file(name, models))
            all_served.append(served)
            if "after" in args.phases:
                served.phases["after"] = _observed(args, client, served)
            if args.during:
                other = model_file(args.during, models)
                with beside_a_registration(client, args.during, other) as is_over:
                    is_over = _first(is_over, _for(args.during_seconds))
                    served.phases["during"] = observe(client, served, args.pause, is_over)
        if "quiet" in args.phases:
            with braid_server(store) as server:
                wait_until_serving(server.client, name)
                served.phases["quiet"] = _observed(args, server.client, served)
        print(text(served), flush=True)
    return all_served


def _observed(args: argparse.Namespace, client: Client, served: Served) -> Phase:
    """A phase of ``args.seconds`` in the state that was asked for."""
    return in_state(args.state, lambda: observe(client, served, args.pause, _for(args.seconds)))


def _for(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def _first(one: Callable[[], bool], other: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: one() or other()


def wait_until_serving(client: Client, name: str) -> None:
    until = time.monotonic() + LONGEST_S
    while client.model(name).state is not ModelState.SERVING:
        if time.monotonic() > until:
            sys.exit(f"{name} does not serve again")
        time.sleep(0.1)


def text(served: Served) -> str:
    first = f"{served.network} ({served.planner}), compared {served.compared_us / 1e3:.2f} ms"
    lines = [f"{first}, registered in {served.registered_s:.1f} s"]
    for name, phase in served.phases.items():
        lines.append(
            f"  {name:7} computing {phase.compute_us / 1e3:7.2f} ms  {phase.ratio:5.2f} of compared"
            f"  client p50 {phase.client_us / 1e3:7.2f} ms  p99 {phase.client_p99_us / 1e3:7.2f} ms"
            f"  {phase.requests} requests"
        )
    return "\n".join(lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("benchmarks.served", __doc__)
    parser.add_argument("networks", nargs="+", choices=NETWORKS, metavar="NETWORK")
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument("--store", type=Path, help="of the server, kept; what it has is not made")
    parser.add_argument("--phases", type=names, default=["after", "quiet"])
    parser.add_argument("--during", choices=NETWORKS, help="to register beside the requests")
    parser.add_argument("--during-seconds", type=float, default=60.0, help="then it is cancelled")
    parser.add_argument("--seconds", type=float, default=10.0, help="of requests, each phase")
    parser.add_argument("--pause", type=lambda s: float(s) / 1e3, default=0.0, help="milliseconds")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    add_state(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return by_state(_options(arguments), _run)


def _run(args: argparse.Namespace) -> int:
    facts = environment.describe("torch", "onnxruntime", "grpcio")
    with tempfile.TemporaryDirectory(prefix="braid-served-") as temporary:
        work = Path(temporary)
        all_served = measure(args, args.store or work / "store", args.models or work)
    report = {
        "benchmark": "served",
        "environment": facts,
        "pause_s": args.pause,
        "networks": [asdict(served) for served in all_served],
    }
    write_report(args.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
