"""What ingress processes cost and bring: requests a second, and whose CPU time a request takes.

    python -m benchmarks.ingress --out benchmarks/results/ingress.json

One server for each ``--ingress`` count, all with a model that does next to nothing to 600 KB and
sends them back (``benchmarks.serving``). They are loaded in turns, the order changing from round
to round. Beside what the clients see stands the CPU time of the owner, of its ingress processes
and of the device worker, by request: the owner's is the limit of what one server can take.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks import environment
from benchmarks.load.children import free_ports, module, running
from benchmarks.load.processes import LoadGenerators, load_generators
from benchmarks.load.records import Job
from benchmarks.load.results import Load, percentile
from benchmarks.registering import wait_until_up
from benchmarks.serving import SCALE, SHAPE, identity_like
from braid_client import Client

DEFAULT_OUT = environment.REPOSITORY / "benchmarks" / "results" / "local" / "ingress.json"
ROLES = ("owner", "ingress", "worker")


@dataclass(frozen=True, slots=True)
class Server:
    """One server under test."""

    ingress: int
    address: str
    owner: psutil.Process

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far, by role."""
        spent = dict.fromkeys(ROLES, 0.0)
        for process in (self.owner, *self.owner.children()):
            times = process.cpu_times()
            spent[_role(process, self.owner)] += times.user + times.system
        return spent


@dataclass(frozen=True, slots=True)
class Turn:
    """One server under one load in one round."""

    ingress: int
    load: Load
    round: int
    requests: int
    errors: int
    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: dict[str, float]  # by role, a request; the warm-up's requests are in neither


@contextmanager
def server(ingress: int, model: Path, folder: Path, threads: int) -> Iterator[Server]:
    """``braid serve`` with ``model`` registered."""
    grpc_port, http_port = free_ports(2)
    options = {
        "--store": folder / f"store-{ingress}", "--grpc-port": grpc_port, "--http-port": http_port,
        "--ingress": ingress, "--threads": threads,
    }  # fmt: skip
    arguments = [str(part) for option in options.items() for part in option]
    address = f"127.0.0.1:{grpc_port}"
    command = ["env", "BRAID_SPARE_WORKER=false", *module("server.cli.main", "serve", *arguments)]
    with running(command, log=folder / f"braid-{ingress}.log") as process:
        with Client(address) as client:
            wait_until_up(client)
            client.register(model.stem, model, batch_sizes=[1], wait=True, timeout_s=120.0)
        yield Server(ingress, address, psutil.Process(process.pid))


def measure(
    servers: Sequence[Server], generators: LoadGenerators, options: argparse.Namespace
) -> list[Turn]:
    """Load the servers in turns, for each pattern of load."""
    turns = []
    loads = [Load(clients) for clients in options.clients]
    loads += [Load(16, rate) for rate in options.rates]
    for load in loads:
        for number in range(options.rounds):
            for each in servers if number % 2 == 0 else reversed(servers):
                turns.append(_turn(each, load, number, generators, options))
                print(_line(turns[-1]), file=sys.stderr)
    return turns


def _turn(
    server: Server,
    load: Load,
    number: int,
    generators: LoadGenerators,
    options: argparse.Namespace,
) -> Turn:
    job = Job(
        address=server.address,
        model="identity_like",
        scale=SCALE,
        shape=SHAPE,
        clients=load.clients,
        warmup_s=0.0,
        measure_s=options.seconds,
        rate_per_s=load.rate_per_s,
        seed=number,
    )
    before = server.cpu_seconds()
    samples = generators.run(job)
    after = server.cpu_seconds()
    requests = len(samples.latency_us)
    return Turn(
        ingress=server.ingress,
        load=load,
        round=number,
        requests=requests,
        errors=sum(samples.errors.values()),
        requests_per_s=requests / samples.seconds,
        p50_us=percentile(samples.latency_us, 50),
        p99_us=percentile(samples.latency_us, 99),
        cpu_us={role: (after[role] - before[role]) * 1e6 / requests for role in ROLES},
    )


def _role(process: psutil.Process, owner: psutil.Process) -> str:
    if process.pid == owner.pid:
        return "owner"
    return "ingress" if "server.ingress.main" in process.cmdline() else "worker"


def _line(turn: Turn) -> str:
    spent = "  ".join(f"{role} {turn.cpu_us[role]:5.0f}" for role in ROLES)
    return (
        f"{turn.load!s:24} --ingress {turn.ingress}  {turn.requests_per_s:6.0f} /s"
        f"  p50 {turn.p50_us:6.0f} us  CPU us a request: {spent}"
        + (f"  {turn.errors} ERRORS" if turn.errors else "")
    )


def medians(turns: Sequence[Turn]) -> list[Turn]:
    """One row for each load and count: medians over the rounds."""
    rows = []
    for key in dict.fromkeys((turn.load, turn.ingress) for turn in turns):
        of = [turn for turn in turns if (turn.load, turn.ingress) == key]
        rows.append(
            Turn(
                ingress=key[1],
                load=key[0],
                round=len(of),
                requests=sum(turn.requests for turn in of),
                errors=sum(turn.errors for turn in of),
                requests_per_s=median(turn.requests_per_s for turn in of),
                p50_us=median(turn.p50_us for turn in of),
                p99_us=median(turn.p99_us for turn in of),
                cpu_us={role: median(turn.cpu_us[role] for turn in of) for role in ROLES},
            )
        )
    return rows


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if a request of a closed loop failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingress")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--ingress", type=_numbers, default=[0, 1, 2], help="counts to compare")
    parser.add_argument("--clients", type=_numbers, default=[1, 16], help="closed loop")
    parser.add_argument("--rates", type=_numbers, default=[200], help="open loop: requests/s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per turn")
    parser.add_argument("--threads", type=int, default=1, help="of the device")
    parser.add_argument("--generators", type=int, default=1, help="processes of clients")
    options = parser.parse_args(arguments)
    facts = environment.describe("grpcio", "protobuf", "torch", "numpy", "tritonclient")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-ingress-")))
        model = identity_like(folder / "identity_like.onnx")
        servers = [
            stack.enter_context(server(count, model, folder, options.threads))
            for count in options.ingress
        ]
        generators = stack.enter_context(load_generators(options.generators))
        turns = measure(servers, generators, options)
    rows = medians(turns)
    report = {
        "benchmark": "ingress",
        "environment": facts,
        "shape": SHAPE,
        "medians": [asdict(row) for row in rows],
        "turns": [asdict(turn) for turn in turns],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(map(_line, rows)))
    return 1 if any(row.errors for row in rows if row.load.rate_per_s is None) else 0


if __name__ == "__main__":
    sys.exit(main())
