"""What a registration costs the requests of a served model, and how well its end is foretold.

    python -m benchmarks.registering --served squeezenet --registered inception_v3 --out FOLDER
    python -m benchmarks.registering --rate 0 --registered nasnet_large

One server, one model that answers requests at a fixed rate (open loop: a late answer does not delay
the next request), first quietly, then while another model is registered at batch sizes 1 and 8.
Latencies are counted by what the job was doing when the request was sent. The targets are a median
of at most 1.2 times the quiet one, and a p99 of at most 1.5 times. With ``--rate 0`` there are no
requests; with ``--clients N`` they come from N clients that never pause, and what counts is how
many are answered, how long the registration takes and how far off its measurements are.

The job's own forecast is checked, too: its progress must not fall, and after the first third of its
time what it said was left should be within a factor of two of what was.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import describe
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS, arrays_of
from benchmarks.reports import numbers, parser_of, write_report
from braid_client import BraidError, Client

QUIET = "quiet"
SENDERS = 16  # requests that may be on their way at once
SETTLE_S = 5.0  # after the first registration, in which the server starts its next importer


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds from when a request was due until its answer."""

    requests: int
    median_ms: float
    p99_ms: float
    longest_ms: float

    @staticmethod
    def of(samples_ms: Sequence[float]) -> Latencies:
        percentiles = quantiles(samples_ms, n=100, method="inclusive")
        return Latencies(len(samples_ms), median(samples_ms), percentiles[98], max(samples_ms))


FORETOLD_FROM = 1 / 3
"""Of the job's time; the forecast is judged from here on ..."""

FORETOLD_UNTIL_S = 3.0
"""... until so many seconds are left, which come down to how often the job tells."""


@dataclass(slots=True)
class Forecasts:
    """What a job said of itself: seconds since it began, progress, seconds left if it knew."""

    told: list[tuple[float, float, float | None]] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        """Seconds in all, whether progress ever fell, and the forecasts over what was left."""
        total_s = self.told[-1][0]
        progress = [part for _, part, _ in self.told]
        ratios = [
            left_s / (total_s - at_s)
            for at_s, _, left_s in self.told
            if left_s is not None
            and at_s >= FORETOLD_FROM * total_s
            and total_s - at_s >= FORETOLD_UNTIL_S
        ]
        within = sum(0.5 <= ratio <= 2.0 for ratio in ratios)
        return {
            "seconds": total_s,
            "monotone": progress == sorted(progress),
            "forecasts": len(ratios),
            "within_factor_two": within / len(ratios) if ratios else None,
            "lowest_ratio": min(ratios, default=None),
            "median_ratio": median(ratios) if ratios else None,
            "highest_ratio": max(ratios, default=None),
        }


@dataclass(slots=True)
class Load:
    """Requests at a fixed rate, and how long each took, by what else was going on."""

    client: Client
    model: str
    inputs: dict[str, NDArray[np.generic]]
    rate: float
    clients: int = 0  # without pause, instead of the rate
    phase: str = QUIET
    samples_ms: dict[str, list[float]] = field(default_factory=dict)
    failures: int = 0
    quiet_s: float = 0.0
    forecasts: Forecasts = field(default_factory=Forecasts)
    sequential_us: dict[int, float] = field(default_factory=dict)  # as measured, by batch size
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        if self.clients:
            with ThreadPoolExecutor(self.clients) as pool:
                for _ in range(self.clients):
                    pool.submit(self._without_pause)
            return
        if not self.rate:
            return
        began, sent = time.monotonic(), 0
        with ThreadPoolExecutor(SENDERS) as pool:
            while not self.stopped.wait(max(0.0, began + sent / self.rate - time.monotonic())):
                pool.submit(self._request, began + sent / self.rate, self.phase)
                sent += 1

    def _without_pause(self) -> None:
        while not self.stopped.is_set():
            self._request(time.monotonic(), self.phase)

    def _request(self, due: float, phase: str) -> None:
        try:
            self.client.infer(self.model, self.inputs, timeout_s=60.0)
        except BraidError:
            self.failures += 1
        else:
            self.samples_ms.setdefault(phase, []).append((time.monotonic() - due) * 1e3)


def measure(client: Client, model: Path, other: Path, args: argparse.Namespace) -> Load:
    """Quiet seconds, then a registration; every request by what the job was doing."""
    client.register(args.served, model, wait=True, timeout_s=600.0)
    inputs = arrays_of(NETWORKS[args.served])
    load = Load(client, args.served, inputs, args.rate, args.clients)
    for _ in range(20):
        client.infer(args.served, inputs)
    time.sleep(SETTLE_S)
    sender = threading.Thread(target=load.run)
    sender.start()
    try:
        time.sleep(args.quiet if args.rate or args.clients else 0.0)
        load.quiet_s, began = args.quiet, time.monotonic()
        job = client.register(args.registered, other, batch_sizes=args.batches)
        for state in client.watch_job(job.id):
            load.phase = state.state.value.lower()
            told = (time.monotonic() - began, state.progress, state.eta_s)
            load.forecasts.told.append(told)
        load.phase = "after"
        load.sequential_us = {
            plan.batch_size: plan.sequential_us for plan in client.model(args.registered).schedules
        }
    finally:
        load.stopped.set()
        sender.join()
    return load


def main() -> None:
    parser = parser_of("benchmarks.registering", __doc__)
    parser.add_argument("--served", choices=NETWORKS, default="squeezenet")
    parser.add_argument("--registered", choices=NETWORKS, default="inception_v3")
    parser.add_argument("--batches", type=numbers, default=[1, 8])
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second; 0: none")
    parser.add_argument("--clients", type=int, default=0, help="that never pause; no rate then")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds before registering")
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument("--out", type=Path, help="folder for registering.json")
    args = parser.parse_args()
    environment = describe("torch", "onnxruntime")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        model, other = (
            model_file(name, args.models or work) for name in (args.served, args.registered)
        )
        with braid_server(work / "store") as server:
            load = measure(server.client, model, other, args)
    report(load, environment, args)


def report(load: Load, environment: object, args: argparse.Namespace) -> None:
    busy = [ms for phase, samples in load.samples_ms.items() for ms in samples
            if phase not in (QUIET, "after")]  # fmt: skip
    phases = {**load.samples_ms, "registering": busy}
    by_phase = {phase: Latencies.of(ms) for phase, ms in phases.items() if len(ms) > 1}
    for phase, latencies in by_phase.items():
        print(
            f"{phase:12} {latencies.requests:6} requests  median {latencies.median_ms:8.2f} ms"
            f"  p99 {latencies.p99_ms:8.2f} ms  longest {latencies.longest_ms:8.2f} ms"
        )
    ratio = median_ratio = None
    if by_phase:
        ratio = by_phase["registering"].p99_ms / by_phase[QUIET].p99_ms
        median_ratio = by_phase["registering"].median_ms / by_phase[QUIET].median_ms
        print(
            f"while registering over quiet: median {median_ratio:.2f}x, p99 {ratio:.2f}x;"
            f" {load.failures} requests failed"
        )
    answered = {}
    if load.clients:
        seconds = {QUIET: load.quiet_s, "registering": load.forecasts.told[-1][0]}
        answered = {phase: by_phase[phase].requests / seconds[phase] for phase in seconds}
        print("answers a second:", {phase: round(rate, 1) for phase, rate in answered.items()})
    print("sequential plans as measured, us:", load.sequential_us)
    forecast = load.forecasts.summary()
    print(f"registration: {forecast}")
    if args.out is not None:
        document = {
            "environment": environment,
            "served": args.served,
            "registered": args.registered,
            "batches": args.batches,
            "rate_per_s": None if args.clients else args.rate,
            "clients": args.clients,
            "answers_per_s": answered,
            "sequential_us": load.sequential_us,
            "latencies": {phase: asdict(latencies) for phase, latencies in by_phase.items()},
            "p99_ratio": ratio,
            "median_ratio": median_ratio,
            "failed": load.failures,
            "registration": forecast,
        }
        write_report(args.out / "registering.json", document)


if __name__ == "__main__":
    main()
