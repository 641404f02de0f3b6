"""Two models under load on one device: does each get its part?

    python -m benchmarks.sharing --models squeezenet,googlenet --out FOLDER

Closed loop: some clients a model, each sends its next request when it has the answer. Each model
first has the device for itself, then all are loaded at once. Shares are of the time that batches
were on the device; with equal policies they should be equal, however much longer one model takes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.environment import describe
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS, arrays_of
from benchmarks.registering import Latencies
from benchmarks.reports import names, parser_of, write_report
from braid_client import Client

UNCOUNTED_S = 1.0  # at the beginning of a phase


@dataclass(frozen=True, slots=True)
class Use:
    """What one model got in one phase."""

    model: str
    requests_per_s: float
    device_share: float  # of the phase's time
    latencies: Latencies


@dataclass(slots=True)
class Loop:
    """Clients of one model that send until stopped."""

    client: Client
    model: str
    clients: int
    stopped: threading.Event = field(default_factory=threading.Event)
    answers: list[tuple[float, float, int]] = field(default_factory=list)  # ended, ms, device us

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._send) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        return threads

    def _send(self) -> None:
        inputs = arrays_of(NETWORKS[self.model])
        while not self.stopped.is_set():
            began = time.monotonic()
            result = self.client.infer(self.model, inputs, timeout_s=60.0)
            ended = time.monotonic()
            self.answers.append((ended, (ended - began) * 1e3, result.timing.compute_us))

    def use(self, began: float, ended: float) -> Use:
        counted = [(ms, us) for at, ms, us in self.answers if began <= at < ended]
        seconds = ended - began
        return Use(
            self.model,
            len(counted) / seconds,
            sum(us for _, us in counted) / 1e6 / seconds,
            Latencies.of([ms for ms, _ in counted]),
        )


def measure(client: Client, models: Sequence[str], clients: int, seconds: float) -> list[Use]:
    loops = [Loop(client, model, clients) for model in models]
    threads = [thread for loop in loops for thread in loop.start()]
    time.sleep(UNCOUNTED_S)
    began = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    for loop in loops:
        loop.stopped.set()
    for thread in threads:
        thread.join()
    return [loop.use(began, ended) for loop in loops]


def main() -> None:
    parser = parser_of("benchmarks.sharing", __doc__)
    parser.add_argument("--models", type=names, default=["squeezenet", "googlenet"])
    parser.add_argument("--clients", type=int, default=4, help="of each model")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--files", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument("--out", type=Path, help="folder for sharing.json")
    args = parser.parse_args()
    environment = describe("torch")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        with braid_server(work / "store") as server:
            client = server.client
            for model in args.models:
                path = model_file(model, args.files or work)
                client.register(model, path, planner="sequential", wait=True, timeout_s=600.0)
            phases = [*([model] for model in args.models), args.models]
            uses = [measure(client, phase, args.clients, args.seconds) for phase in phases]
    for phase in uses:
        print("alone" if len(phase) == 1 else "together")
        for use in phase:
            print(
                f"  {use.model:16} {use.requests_per_s:7.1f} requests/s"
                f"  {use.device_share:6.1%} of the device"
                f"  p50 {use.latencies.median_ms:7.1f} ms  p99 {use.latencies.p99_ms:7.1f} ms"
            )
    if args.out is not None:
        phases_json = [[asdict(use) for use in phase] for phase in uses]
        document = {"environment": environment, "clients": args.clients, "phases": phases_json}
        write_report(args.out / "sharing.json", document)


if __name__ == "__main__":
    main()
