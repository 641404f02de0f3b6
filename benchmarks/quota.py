"""A server under a quota of CPU time below the cores: throttled periods, latency, CPU by thread.

    python -m benchmarks.quota --cpus 1 --out FOLDER
    python -m benchmarks.quota --other PATH        beside another build of Braid

Servers of one model, each in a control group of its own, are asked in turns by clients outside of
it, which wait for their answers. The model ``identity`` moves 600 KB and computes next to nothing.

    as it is       no setting
    by hand        BRAID_THREADS as the quota says
    on all cores   BRAID_PIN_THREADS=false: the kernel runs its threads on any core

Needs root, to make control groups.
"""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from benchmarks.environment import REPOSITORY, describe
from benchmarks.footprint import module_of
from benchmarks.load.callers import Callers
from benchmarks.load.processes import braid_server
from benchmarks.peers.models import IDENTITY, prepare
from benchmarks.reports import numbers, parser_of, percentile, write_report
from braid_client.wire import inference_pb2
from tests.control_groups import group_with_quota, within

MODELS = ("squeezenet", IDENTITY)
SHAPE = (1, 3, 224, 224)
BATCH_SIZES = (1, 2, 4, 8)
REGISTERED_S = 300
WARM_S = 1.0
THREADS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Phase:
    """What clients saw of a server in one phase, and what its group used."""

    answers_per_s: float
    p50_ms: float
    p99_ms: float
    periods: int
    throttled_part: float  # of the periods
    cpus_used: float
    by_thread: Mapping[str, float]  # CPUs used, of those that used most


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a group."""

    address: str
    request: bytes
    group: Path
    process: psutil.Process


def main() -> None:
    parser = parser_of("benchmarks.quota", __doc__)
    parser.add_argument("--cpus", type=float, default=1.0, help="the quota")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--clients", type=numbers, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a phase")
    parser.add_argument("--other", type=Path, help="folder that holds another build of braid")
    parser.add_argument("--out", type=Path, help="folder for quota.json")
    arguments = parser.parse_args()
    by_hand = {"BRAID_THREADS": str(max(1, math.floor(arguments.cpus)))}
    kinds = {
        "as it is": (REPOSITORY, {}),
        "by hand": (REPOSITORY, by_hand),
        "on all cores": (REPOSITORY, {"BRAID_PIN_THREADS": "false"}),
    }
    if arguments.other is not None:
        kinds["other"] = (arguments.other.absolute(), by_hand)
    phases: dict[str, list[Phase]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = prepare(arguments.model, folder).file
        servers = {
            name: serve(stack, folder / name.replace(" ", "-"), model, arguments.cpus, *kind)
            for name, kind in kinds.items()
        }
        for _ in range(arguments.rounds):
            for clients in arguments.clients:
                for name, server in servers.items():
                    phase = asyncio.run(measure(server, clients, arguments.seconds))
                    phases.setdefault(f"{name}, {clients} clients", []).append(phase)
    rows = {name: summary(of_one) for name, of_one in phases.items()}
    print(json.dumps(rows, indent=1))
    if arguments.out is not None:
        every = {name: list(map(asdict, of_one)) for name, of_one in phases.items()}
        facts = {
            "environment": describe("grpcio", "torch"),
            "cpus": arguments.cpus,
            "model": arguments.model,
        }
        write_report(arguments.out / "quota.json", {**facts, "medians": rows, "phases": every})


def serve(
    stack: ExitStack,
    store: Path,
    model: Path,
    cpus: float,
    tree: Path,
    environment: Mapping[str, str],
) -> Server:
    """Start a server in a group of its own, the model registered."""
    group = stack.enter_context(group_with_quota(cpus))
    usual = {"BRAID_COMPARE_AGAIN": "false"}  # registrations in idle time
    if tree != REPOSITORY:
        usual["PYTHONPATH"] = str(tree)
    started = braid_server(
        store, environment={**usual, **environment}, tree=tree, before=within(group)
    )
    server = stack.enter_context(started)
    server.client.register(
        "net",
        model,
        batch_sizes=BATCH_SIZES,
        planner="sequential",
        wait=True,
        timeout_s=REGISTERED_S,
    )
    values = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    name = server.client.model("net").inputs[0].name
    tensor = inference_pb2.Tensor(name=name, dtype="FP32", shape=SHAPE, data=values.tobytes())
    request = inference_pb2.InferRequest(model="net", inputs=[tensor]).SerializeToString()
    return Server(server.address, request, group, psutil.Process(server.process.pid))


async def measure(server: Server, clients: int, seconds: float) -> Phase:
    callers = Callers(server.address, server.request)
    await callers.closed(clients, WARM_S)
    before, threads, began = _counts(server.group), _thread_seconds(server.process), time.time()
    outcomes = await callers.closed(clients, seconds)
    wall_s = time.time() - began
    after, used_s = _counts(server.group), _thread_seconds(server.process)
    await callers.close()
    if outcomes.other or outcomes.refused:
        raise ValueError(f"not answered: {outcomes.other}, refused: {len(outcomes.refused)}")
    used = {name: (used_s[name] - threads.get(name, 0.0)) / wall_s for name in used_s}
    most = sorted(used, key=lambda name: -used[name])[:THREADS_SHOWN]
    periods = after["nr_periods"] - before["nr_periods"]
    return Phase(
        outcomes.answers_per_s,
        percentile(outcomes.answered, 50) * 1000,
        percentile(outcomes.answered, 99) * 1000,
        periods,
        (after["nr_throttled"] - before["nr_throttled"]) / max(1, periods),
        sum(used.values()),
        {name: round(used[name], 3) for name in most},
    )


def summary(phases: list[Phase]) -> dict[str, object]:
    figures = ("answers_per_s", "p50_ms", "p99_ms", "throttled_part", "cpus_used")
    medians = {name: round(median(getattr(p, name) for p in phases), 3) for name in figures}
    return {**medians, "by_thread": phases[-1].by_thread}


def _counts(group: Path) -> dict[str, int]:
    """Counts of a group's quota, by name."""
    lines = (group / "cpu.stat").read_text().splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def _thread_seconds(server: psutil.Process) -> dict[str, float]:
    """CPU time of each thread of a server, by its process's module, its name and its number."""
    seconds = {}
    for process in (server, *server.children(recursive=True)):
        with suppress(psutil.Error, OSError):  # it has ended
            for thread in process.threads():
                name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip()
                key = f"{module_of(process)} {name} {thread.id}"
                seconds[key] = thread.user_time + thread.system_time
    return seconds


if __name__ == "__main__":
    main()
