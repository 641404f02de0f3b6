"""What serves after a few hundred requests, beside the best that could.

    python -m benchmarks.in_service FOLDER [--rounds 9] [--seconds 0.5] [--beside 2] --json FILE

Each ONNX file of FOLDER (one FP32 input) is registered as a user does and asked ``--requests``
times by one client. Then it is asked in turns with thirty lines of grpc.aio around ONNX Runtime and
around OpenVINO, all threads for each; then with its own candidates, each forced by a pin under a
name of its own. Jobs that try larger batch sizes end before either. Ratios are of medians of the
turns' medians, at the client. A network that is in FILE is left out. ``--beside N``: N loops take
the processors for random parts of a second.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import onnxruntime

from benchmarks.environment import describe
from benchmarks.load.children import free_ports, read_line, running
from benchmarks.load.processes import braid_server
from benchmarks.peers.hosting.contract import SERVERS
from benchmarks.peers.load.client import Job, client_process
from benchmarks.peers.load.loops import Samples
from benchmarks.peers.load.tensors import Question, write_questions
from benchmarks.peers.models import QUESTIONS
from benchmarks.reports import parser_of, write_report
from braid.core.allowance import cpu_allowance
from braid_client import Client

RIVALS = "thirty_lines_ort", "thirty_lines_openvino"
SERVES = "braid"
TOLERANCE = 1e-2  # of random weights, relative to the largest element
WARM_UP_S = 0.1  # of each turn
NOISE = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.05, 1)
    while time.monotonic() < end: pass
    time.sleep(random.uniform(0.05, 1))
"""

Turn = Callable[[], list[int]]
"""Asks one model for a while, and returns latencies in microseconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One network; latencies in microseconds, medians of medians, by server or candidate."""

    ready_s: float  # from the upload until READY
    contest: str  # as the server says it after the requests
    latency_us: Mapping[str, float]  # what serves, and rivals
    forced_us: Mapping[str, float]  # what serves, and candidates

    @property
    def ahead(self) -> float:
        """Latency of the better rival over what serves."""
        return min(self.latency_us[rival] for rival in RIVALS) / self.latency_us[SERVES]

    @property
    def lost(self) -> float:
        """Latency of what serves over that of the best candidate."""
        return self.forced_us[SERVES] / min(self.forced_us.values())


def measure(file: Path, folder: Path, options: Namespace) -> Outcome:
    """Register, ask, and compare one network; ``folder`` is empty."""
    questions = write_questions(folder / "questions.npz", list(_questions(file)))
    with ExitStack() as stack:
        for _ in range(options.beside):
            stack.enter_context(running([sys.executable, "-c", NOISE]))
        clients = stack.enter_context(client_process())
        server = stack.enter_context(braid_server(folder / "store"))

        def asks(address: str, model: str) -> Turn:
            job = Job(
                clients=1,
                warmup_s=WARM_UP_S,
                measure_s=options.seconds,
                address=address,
                model=model,
                questions=str(questions),
            )
            return lambda: _latencies(clients.run(job))

        began = time.monotonic()
        server.client.register(SERVES, file, wait=True)
        ready_s = time.monotonic() - began
        serves, answers = asks(server.address, SERVES), 0
        while answers < options.requests:
            answers += len(serves())
        _wait_for_jobs(server.client)
        with ExitStack() as rivals:
            addresses = {name: rivals.enter_context(_rival(name, file, folder)) for name in RIVALS}
            turns = {name: asks(address, SERVES) for name, address in addresses.items()}
            latency_us = _in_turns({SERVES: serves, **turns}, options.rounds)
        contests = [s.contest for s in server.client.model(SERVES).schedules if s.batch_size == 1]
        (contest,) = filter(None, contests)
        forced = {SERVES: serves}
        for plan in [candidate.name for candidate in contest.candidates]:
            name = f"forced-{len(forced)}"
            server.client.register(name, file, pin=plan, wait=True)
            forced[plan] = asks(server.address, name)
        _wait_for_jobs(server.client)
        return Outcome(ready_s, contest.text, latency_us, _in_turns(forced, options.rounds))


def _questions(file: Path) -> Iterator[Question]:
    session = onnxruntime.InferenceSession(file)
    (x,), outputs = session.get_inputs(), [output.name for output in session.get_outputs()]
    shape = [extent if isinstance(extent, int) else 1 for extent in x.shape]
    for seed in range(QUESTIONS):
        feeds = {x.name: np.random.default_rng(seed).random(shape, dtype=np.float32)}
        answers = zip(outputs, session.run(outputs, feeds), strict=True)
        yield Question(feeds, dict(answers), TOLERANCE)


def _wait_for_jobs(client: Client) -> None:
    while not all(job.ended for job in client.jobs()):
        time.sleep(0.2)


@contextmanager
def _rival(name: str, file: Path, folder: Path) -> Iterator[str]:
    """Run thirty lines around a runtime, in this interpreter's environment."""
    (port,), threads = free_ports(1), cpu_allowance().threads
    given = {"--model": file, "--name": SERVES, "--port": port, "--threads": threads}
    given |= {"--batch-sizes": 1, "--folder": folder}
    flags = [str(part) for flag in given.items() for part in flag]
    with running([sys.executable, str(SERVERS / name / "serve.py"), *flags]) as process:
        while read_line(process).strip() != "READY":
            pass
        yield f"127.0.0.1:{port}"


def _latencies(samples: Samples) -> list[int]:
    if samples.errors:
        raise SystemExit(f"requests failed: {dict(samples.errors)}")
    return samples.latency_us


def _in_turns(turns: Mapping[str, Turn], rounds: int) -> dict[str, float]:
    medians: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name in random.sample(list(turns), len(turns)):
            medians[name].append(median(turns[name]()))
    return {name: median(of_turns) for name, of_turns in medians.items()}


def main() -> int:
    parser = parser_of("benchmarks.in_service", __doc__)
    parser.add_argument("folder", type=Path, help="of ONNX files")
    parser.add_argument("--requests", type=int, default=300, help="before the comparison")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--beside", type=int, default=0, help="loops beside the servers")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    networks = json.loads(options.json.read_text())["networks"] if options.json.exists() else {}
    facts = describe("onnxruntime", "openvino", "grpcio")
    for file in sorted(options.folder.glob("*.onnx")):
        if file.stem in networks:
            continue
        with tempfile.TemporaryDirectory(prefix="braid-in-service-") as folder:
            found = measure(file, Path(folder), options)
        networks[file.stem] = asdict(found) | {"ahead": found.ahead, "lost": found.lost}
        row = f"ahead {found.ahead:.3f}  lost {found.lost:.3f}  READY {found.ready_s:5.1f} s"
        print(f"{file.stem:28} {row}  {found.contest}", flush=True)
        write_report(options.json, {"environment": facts, "networks": networks})
    for name in ("ahead", "lost"):
        values = [network[name] for network in networks.values()]
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"{name}: geometric mean {geometric_mean(values):.3f} ({spread})")
    print(f"READY: median {median(n['ready_s'] for n in networks.values()):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
