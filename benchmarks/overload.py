"""What batching brings, and what overload does: SqueezeNet 1.1 in an open loop (Poisson arrivals).

    python -m benchmarks.overload --out benchmarks/results/overload.json

Two servers on one CPU device each: one schedules batch size 1 only, the other several. For each:

    unloaded   one client, one request after the other: the p50 that p99 is compared with
    capacity   many clients that wait for their answers: the most answers a second
    80 %       arrivals at 80 % of the capacity: throughput, p50, p99
    bounded    the same arrivals, requests refused that would wait longer than 1.5 unloaded p50
    200 %      arrivals at twice the capacity: goodput, how refusals end and how fast, memory

One process makes all requests, so the device gets ``--threads`` cores and leaves the others to it
and to the front end. A latency counts from the moment the request was due.

Beside p99 at 80 % stands that of a perfect queue: such arrivals, served in order at the measured
capacity, each taking the unloaded p50 beside its wait. No server of this capacity that answers
every request comes below it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from benchmarks import environment
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import export_onnx
from benchmarks.reports import LOCAL, percentile, write_report
from braid.core.allowance import cpu_allowance
from braid.engine.runtime.memory import keep_freed_memory
from braid.server.devices.cores import leave_cores_to_devices
from braid_client import Client, Serving
from braid_client.wire import inference_pb2

DEFAULT_OUT = LOCAL / "overload.json"
INFER = "/braid.v1.InferenceService/Infer"
QUEUE_REQUESTS = 64
BOUND = 1.5
"""Longest wait in the bounded phase, in unloaded p50."""
CHANNELS = 8
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


@dataclass
class Outcomes:
    """What the clients of one phase saw; times in seconds."""

    seconds: float = 0.0
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)  # RESOURCE_EXHAUSTED
    other: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, object]:
        return {
            "answers_per_s": round(len(self.answered) / self.seconds, 1),
            "p50_ms": _ms(self.answered, 50),
            "p99_ms": _ms(self.answered, 99),
            "refused": len(self.refused),
            "refused_p50_ms": _ms(self.refused, 50),
            "refused_p99_ms": _ms(self.refused, 99),
            "refused_max_ms": _ms(self.refused, 100),
            "other_ends": dict(self.other),
        }


def _ms(seconds: Sequence[float], percent: float) -> float | None:
    return round(percentile(seconds, percent) * 1000, 2) if seconds else None


async def closed_loop(
    one: Callable[[int, float, Outcomes], Awaitable[None]], clients: int, seconds: float
) -> Outcomes:
    """Send requests by ``one``: each client waits for its answer before it sends again."""
    outcomes, began = Outcomes(), time.perf_counter()

    async def client(number: int) -> None:
        while time.perf_counter() < began + seconds:
            await one(number, time.perf_counter(), outcomes)

    await asyncio.gather(*map(client, range(clients)))
    outcomes.seconds = time.perf_counter() - began
    return outcomes


class Clients:
    """Sends one request, serialised once, over several connections in turn."""

    def __init__(self, address: str, model: str, shape: Sequence[int]) -> None:
        values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        with Client(address) as client:
            name = client.model(model).inputs[0].name
        tensor = inference_pb2.Tensor(name=name, dtype="FP32", shape=shape, data=values.tobytes())
        message = inference_pb2.InferRequest(model=model, inputs=[tensor])
        self._message = message.SerializeToString()
        self._channels = [
            grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(CHANNELS)
        ]
        self._calls: list[Any] = [channel.unary_unary(INFER) for channel in self._channels]

    async def one(self, number: int, due: float, outcomes: Outcomes) -> None:
        try:
            await self._calls[number % CHANNELS](self._message, timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                outcomes.refused.append(time.perf_counter() - due)
            else:
                outcomes.other[error.code().name] += 1
        else:
            outcomes.answered.append(time.perf_counter() - due)

    async def closed(self, clients: int, seconds: float) -> Outcomes:
        return await closed_loop(self.one, clients, seconds)

    async def open(self, rate_per_s: float, seconds: float, seed: int) -> Outcomes:
        outcomes, running = Outcomes(), set()
        random = np.random.default_rng(seed)
        due = began = time.perf_counter()
        number = 0
        while (due := due + random.exponential(1 / rate_per_s)) < began + seconds:
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.ensure_future(self.one(number, due, outcomes))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        if running:
            await asyncio.wait(running)
        outcomes.seconds = time.perf_counter() - began
        return outcomes

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Memory:
    """Resident memory of a server and its children, in MiB, and their descriptors."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def mib(self) -> int:
        return sum(mib for mib, _ in self.by_process().values())

    def by_process(self) -> dict[str, tuple[int, int]]:
        """Each process by its module and id: its memory, and how many descriptors it has."""
        by_name = {}
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                name = f"{_module(process)} {process.pid}"
                by_name[name] = process.memory_info().rss >> 20, process.num_fds()
        return by_name


def _module(process: psutil.Process) -> str:
    arguments = process.cmdline()
    return next(
        (argument for argument in arguments if argument.startswith("braid.")), process.name()
    )


@contextmanager
def served(
    model: Path, batch_sizes: Sequence[int], folder: Path, threads: int
) -> Iterator[tuple[str, Memory]]:
    settings = {"BRAID_MAX_QUEUE_REQUESTS": str(QUEUE_REQUESTS)}
    with braid_server(folder / "store", {"--threads": threads}, settings) as server:
        server.client.register(
            "net", model, batch_sizes=batch_sizes, planner="sequential", wait=True, timeout_s=300
        )
        yield server.address, Memory(server.process.pid)


async def measure(address: str, memory: Memory, seconds: float) -> dict[str, object]:
    clients = Clients(address, "net", (1, 3, 224, 224))
    await clients.closed(1, 1.0)
    unloaded = await clients.closed(1, seconds / 2)
    await clients.closed(32, 2.0)
    capacity = await clients.closed(32, seconds)
    capacity_per_s = len(capacity.answered) / capacity.seconds
    at_80 = await clients.open(0.8 * capacity_per_s, seconds, seed=1)
    unloaded_s = percentile(unloaded.answered, 50)
    _bound_waits(address, BOUND * unloaded_s)
    bounded = await clients.open(0.8 * capacity_per_s, seconds, seed=1)
    _bound_waits(address, 0)
    await clients.open(2 * capacity_per_s, 2.0, seed=2)  # fills the queue and the buffers
    before = memory.mib()
    at_200 = await clients.open(2 * capacity_per_s, seconds, seed=3)
    after = memory.mib()
    await clients.close()
    offered = {"80%": 0.8 * capacity_per_s, "200%": 2 * capacity_per_s}
    return {
        "unloaded": unloaded.row(),
        "capacity": capacity.row(),
        "80%": {
            "offered_per_s": round(offered["80%"], 1),
            **at_80.row(),
            "perfect_queue_p99_ms": round(
                1000 * (unloaded_s + perfect_wait_s(capacity_per_s, 0.8, seconds, seed=1)), 2
            ),
        },
        "bounded": {"offered_per_s": round(offered["80%"], 1), **bounded.row()},
        "200%": {
            "offered_per_s": round(offered["200%"], 1),
            **at_200.row(),
            "goodput_of_capacity": round(len(at_200.answered) / at_200.seconds / capacity_per_s, 3),
            "memory_before_mib": before,
            "memory_after_mib": after,
        },
    }


def _bound_waits(address: str, longest_s: float) -> None:
    with Client(address) as client:
        client.set_serving("net", Serving(max_queue_ms=1000 * longest_s))


def perfect_wait_s(capacity_per_s: float, load: float, seconds: float, seed: int) -> float:
    """p99 of the waits of Poisson arrivals that are served in order, one after the other."""
    random = np.random.default_rng(seed)
    due = free_at = 0.0
    waits = []
    while (due := due + random.exponential(1 / (load * capacity_per_s))) < seconds:
        waits.append(max(0.0, free_at - due))
        free_at = max(free_at, due) + 1 / capacity_per_s
    return percentile(waits, 99)


def verdicts(single: dict[str, object], batched: dict[str, object]) -> dict[str, object]:
    def of(report: dict[str, object], phase: str, name: str) -> float:
        row = report[phase]
        assert isinstance(row, dict)
        return float(row[name] or 0)

    growth = of(batched, "200%", "memory_after_mib") - of(batched, "200%", "memory_before_mib")
    return {
        "batching_over_single_throughput": round(
            of(batched, "capacity", "answers_per_s") / of(single, "capacity", "answers_per_s"), 2
        ),
        "p99_at_80%_over_unloaded_p50": round(
            of(batched, "80%", "p99_ms") / of(batched, "unloaded", "p50_ms"), 2
        ),
        "p99_of_a_perfect_queue_over_unloaded_p50": round(
            of(batched, "80%", "perfect_queue_p99_ms") / of(batched, "unloaded", "p50_ms"), 2
        ),
        "p99_with_bounded_waits_over_unloaded_p50": round(
            of(batched, "bounded", "p99_ms") / of(batched, "unloaded", "p50_ms"), 2
        ),
        "goodput_at_200%": of(batched, "200%", "goodput_of_capacity"),
        "slowest_refusal_ms": of(batched, "200%", "refused_max_ms"),
        "memory_growth_mib": growth,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase")
    parser.add_argument("--threads", type=int, default=max(1, cpu_allowance().threads // 2))
    parser.add_argument("--batch-sizes", default="1,2,4,8")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    cores = sorted(os.sched_getaffinity(0))
    report: dict[str, object] = {
        "benchmark": "overload",
        "environment": environment.describe("grpcio", "protobuf", "torch", "numpy"),
        "threads": options.threads,
        "queue_requests": QUEUE_REQUESTS,
    }
    rows = {}
    with tempfile.TemporaryDirectory(prefix="braid-overload-") as name:
        model = export_onnx("squeezenet", Path(name) / "squeezenet.onnx")
        for title, sizes in (("single", "1"), ("batched", options.batch_sizes)):
            folder = Path(name) / title
            folder.mkdir()
            numbers = [int(size) for size in sizes.split(",")]
            with served(model, numbers, folder, options.threads) as (address, memory):
                leave_cores_to_devices(set(cores[: options.threads]))  # they are the device's
                rows[title] = asyncio.run(measure(address, memory, options.seconds))
                os.sched_setaffinity(0, cores)  # the next server inherits it
            print(json.dumps({title: rows[title]}, indent=1), file=sys.stderr)
    report.update(rows, verdicts=verdicts(rows["single"], rows["batched"]))
    write_report(options.out, report)
    print(json.dumps(report["verdicts"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
