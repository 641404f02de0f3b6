"""What storms of callers do to those who behave: goodput, refusals, memory, recovery.

    python -m benchmarks.storms --out FILE.json

One server on one CPU device, a network of small tensors and some ten milliseconds a request, and
one process that makes all requests, on the core that the device leaves to it and the front end:

    capacity           32 clients that wait for their answers, or arrivals at 1.5 times as many
    10x                arrivals at ten times the capacity
    cancellations      as many again, each cancelled after a few milliseconds
    slow readers       streams whose answers, a megabyte each, nobody takes
    idle connections   2,000 that have begun HTTP/2 and say nothing
    stalled uploads    a header and half a file, then nothing
    watchers           1,000 that watch the job of a model being registered

Beside all but the first two, arrivals at 30 % of the capacity go on. Every answer is compared with
ONNX Runtime's. After each storm come the seconds until a request is answered right, and after
``--rest`` seconds the memory and the descriptors of each process are compared with those before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import onnxruntime
import psutil
from onnx import TensorProto, helper, numpy_helper

from benchmarks import environment
from benchmarks.footprint import module_of, processes
from benchmarks.load.callers import CONNECTIONS, OPTIONS, Callers, Outcomes
from benchmarks.load.processes import BraidServer, braid_server
from benchmarks.reports import LOCAL, write_report
from braid.engine.runtime.memory import keep_freed_memory
from braid.server.devices.cores import leave_cores_to_devices
from braid_client import Client
from braid_client.wire import admin_pb2, inference_pb2

DEFAULT_OUT = LOCAL / "storms.json"
ADMIN = "/braid.v1.AdminService/"
SHAPE, CHANNELS, LAYERS = (1, 16, 16, 16), 256, 10
QUEUE_REQUESTS = 64
BESIDE = 0.3  # of the capacity
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

Storm = Callable[["Askers", float, float], Awaitable[dict[str, object]]]
"""Rages for some seconds at a server of some capacity; what its callers saw."""


def network(path: Path) -> Path:
    """Write x [batch, 16, 16, 16] -> convolutions -> y [batch, 256, 1, 1]; seeded weights."""
    random, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    for number in range(LAYERS):
        inner = SHAPE[1] if number == 0 else CHANNELS
        values = random.standard_normal((CHANNELS, inner, 3, 3)) * (2 / (9 * inner)) ** 0.5
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [last := f"h{number}"]))
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *extents])
        for name, extents in (("x", SHAPE[1:]), ("y", (CHANNELS, 1, 1)))
    )
    graph = helper.make_graph(nodes, "storms", [x], [y], weights)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def large_answers(path: Path) -> Path:
    """Write x [batch, 3] -> y [batch, 262144], a megabyte a row."""
    width = 1 << 18
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", extent])
        for name, extent in (("x", 3), ("y", width))
    )
    weight = numpy_helper.from_array(np.ones((3, width), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "wide", [x], [y])
    graph.initializer.append(weight)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


class Askers(Callers):
    """Callers with one request, of which the answer is known."""

    def __init__(self, address: str, model: Path) -> None:
        self.model = model
        x = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
        self._right = onnxruntime.InferenceSession(model).run(None, {"x": x})[0].ravel()
        tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=SHAPE, data=x.tobytes())
        request = inference_pb2.InferRequest(model="net", inputs=[tensor])
        super().__init__(address, request.SerializeToString(), self._answers)

    def _answers(self, answer: bytes) -> bool:
        (output,) = inference_pb2.InferResponse.FromString(answer).outputs
        y = np.frombuffer(output.data, np.float32)
        return np.allclose(y, self._right, rtol=1e-3, atol=1e-4)

    async def until_right(self) -> float:
        began, outcomes = time.perf_counter(), Outcomes()
        while not outcomes.answered or outcomes.other["WRONG"]:
            await self.one(0, time.perf_counter(), outcomes, timeout_s=1.0)
            if time.perf_counter() > began + 60:
                return float("inf")
        return time.perf_counter() - began


# Storms.


async def ten_times(callers: Askers, capacity: float, seconds: float) -> dict[str, object]:
    outcomes = await callers.open(10 * capacity, seconds)
    goodput = outcomes.answers_per_s
    sent = goodput + (len(outcomes.refused) + outcomes.other.total()) / outcomes.seconds
    row: dict[str, object] = {"sent_of_capacity": round(sent / capacity, 2)}
    return {**row, **outcomes.row(), "goodput_of_capacity": round(goodput / capacity, 3)}


def beside(storm: Callable[[Askers, float], Any]) -> Storm:
    """Return a storm with arrivals at BESIDE of the capacity going on beside it."""

    async def both(callers: Askers, capacity: float, seconds: float) -> dict[str, object]:
        async with storm(callers, seconds) as told:
            outcomes = await callers.open(BESIDE * capacity, seconds)
        return {**told, **outcomes.row()}

    return both


@asynccontextmanager
async def cancellations(callers: Askers, seconds: float) -> AsyncIterator[dict[str, object]]:
    """A thousand calls a second, each with 3 ms to live."""
    told: dict[str, object] = {}
    storm = asyncio.create_task(callers.open(1000, seconds, timeout_s=0.003))
    yield told
    told["storm"] = (await storm).row()["other_ends"]


@asynccontextmanager
async def slow_readers(callers: Askers, seconds: float) -> AsyncIterator[dict[str, object]]:
    """200 streams of 50 requests each, whose answers of a megabyte nobody reads."""
    x = inference_pb2.Tensor(name="x", dtype="FP32", shape=(1, 3), data=bytes(12))
    message = inference_pb2.InferRequest(model="wide", inputs=[x]).SerializeToString()
    async with AsyncExitStack() as stack:
        for _ in range(200):
            channel = grpc.aio.insecure_channel(callers.address, options=OPTIONS)
            await stack.enter_async_context(channel)
            call: Any = channel.stream_stream("/braid.v1.InferenceService/InferStream")()
            writing = asyncio.create_task(_write(call, [message] * 50))
            stack.callback(writing.cancel)
            stack.callback(call.cancel)
        yield {"streams": 200}


async def _write(call: Any, messages: Sequence[bytes]) -> None:
    for message in messages:
        await call.write(message)


@asynccontextmanager
async def idle_connections(callers: Askers, seconds: float) -> AsyncIterator[dict[str, object]]:
    """2,000 connections that have begun HTTP/2 and say nothing."""
    host, _, port = callers.address.rpartition(":")
    writers = []
    for _ in range(2000):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE)
        writers.append(writer)
    yield {"connections": len(writers)}
    for writer in writers:
        writer.close()


@asynccontextmanager
async def stalled_uploads(callers: Askers, seconds: float) -> AsyncIterator[dict[str, object]]:
    """200 uploads of a header and half a file each, over two connections."""
    calls, ends = [], []
    header = admin_pb2.RegisterModelHeader(name="stalled")
    half = callers.model.read_bytes()[: 1 << 20]
    parts = [
        admin_pb2.RegisterModelRequest(header=header).SerializeToString(),
        admin_pb2.RegisterModelRequest(chunk=half).SerializeToString(),
    ]
    for number in range(200):
        call: Any = callers.channels[number % 2].stream_unary(f"{ADMIN}RegisterModel")()
        calls.append(call)
        ends.append(asyncio.create_task(_write(call, parts)))
    yield {"uploads": len(calls)}
    for call in calls:
        call.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


@asynccontextmanager
async def watchers(callers: Askers, seconds: float) -> AsyncIterator[dict[str, object]]:
    """1,000 watchers of the job of a model that is registered meanwhile."""
    job = await asyncio.to_thread(_register, callers.address, callers.model)
    request = admin_pb2.WatchJobRequest(job_id=job).SerializeToString()

    async def watch(number: int) -> int:
        call: Any = callers.channels[number % CONNECTIONS].unary_stream(f"{ADMIN}WatchJob")
        state = 0
        async for answer in call(request):
            state = admin_pb2.Job.FromString(answer).state
        return state

    tasks = [asyncio.create_task(watch(number)) for number in range(1000)]
    told: dict[str, object] = {}
    yield told
    states = await asyncio.gather(*tasks, return_exceptions=True)
    ready = admin_pb2.Job.State.READY
    told["saw_it_ready"] = sum(state == ready for state in states)


def _register(address: str, model: Path) -> str:
    with Client(address) as client:
        return client.register("watched", model, batch_sizes=[1, 2], planner="sequential").id


STORMS: dict[str, Storm] = {
    "10x": ten_times,
    "cancellations": beside(cancellations),
    "slow readers": beside(slow_readers),
    "idle connections": beside(idle_connections),
    "stalled uploads": beside(stalled_uploads),
    "watchers": beside(watchers),
}


def by_process(server: BraidServer) -> dict[str, tuple[int, int]]:
    """Each process by its module and id: its resident memory in MiB, its descriptors."""
    by_name = {}
    for process in processes(server):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            name = f"{module_of(process)} {process.pid}"
            by_name[name] = process.memory_info().rss >> 20, process.num_fds()
    return by_name


async def _settled(server: BraidServer, calm_s: float = 10.0) -> None:
    """Wait until none of the processes kept for the next registration has come or gone lately."""
    names, since = by_process(server).keys(), time.monotonic()
    while time.monotonic() < since + calm_s:
        await asyncio.sleep(1.0)
        if (now := by_process(server).keys()) != names:
            names, since = now, time.monotonic()


def grown(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> dict[str, list[int]]:
    """Return MiB and descriptors that each process has more than before; those that differ."""
    differences = {
        name: [
            now - then
            for now, then in zip(after.get(name, (0, 0)), before.get(name, (0, 0)), strict=True)
        ]
        for name in (*before, *(after.keys() - before.keys()))
    }
    return {name: more for name, more in differences.items() if any(more)}


async def measure(
    server: BraidServer, model: Path, options: argparse.Namespace
) -> dict[str, object]:
    callers = Askers(server.address, model)
    await callers.closed(32, 3.0)
    closed = await callers.closed(32, options.seconds)
    paced = await callers.open(1.5 * closed.answers_per_s, options.seconds)
    capacity = max(loop.answers_per_s for loop in (closed, paced))
    rows: dict[str, object] = {"capacity": closed.row(), "150%": paced.row()}
    await _settled(server)
    for name, storm in STORMS.items():
        if options.only and name not in options.only:
            continue
        print(f"{name} begins", file=sys.stderr)
        before = by_process(server)
        row = await storm(callers, capacity, options.storm_seconds if name == "10x" else 10.0)
        recovered_s = await callers.until_right()
        await asyncio.sleep(options.rest)
        more = grown(before, by_process(server))
        row |= {
            "recovered_s": round(recovered_s, 3),
            "more_mib": sum(mib for mib, _ in more.values()),
            "more_descriptors": sum(descriptors for _, descriptors in more.values()),
            "more_by_process": more,
        }
        rows[name] = row
        print(json.dumps({name: row}), file=sys.stderr)
    await callers.close()
    return {"capacity_per_s": round(capacity, 1), **rows}


def table(report: dict[str, Any]) -> list[str]:
    lines = [
        "| storm | answers/s | p99 | refused, p99, longest | other ends | over after | more |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("capacity", "150%", *STORMS):
        if (row := report.get(name)) is None:
            continue
        refused = f"{row['refused']}, {row['refused_p99_ms']} ms, {row['refused_max_ms']} ms"
        left = f"{row.get('more_mib', '')}, {row.get('more_descriptors', '')}"
        lines.append(
            f"| {name} | {row['answers_per_s']} | {row['p99_ms']} ms | {refused} | "
            f"{row['other_ends'] or 'none'} | {row.get('recovered_s', '')} s | {left} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storms")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring the capacity")
    parser.add_argument("--storm-seconds", type=float, default=60.0, help="of ten times as much")
    parser.add_argument("--rest", type=float, default=8.0, help="seconds after each storm")
    parser.add_argument("--only", nargs="*", choices=list(STORMS), help="of the storms")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    cores = sorted(os.sched_getaffinity(0))
    threads = max(1, len(cores) // 2)
    report: dict[str, Any] = {
        "benchmark": "storms",
        "environment": environment.describe("grpcio", "protobuf", "torch", "numpy"),
        "threads": threads,
    }
    with tempfile.TemporaryDirectory(prefix="braid-storms-") as name:
        model = network(Path(name) / "net.onnx")
        settings = {"BRAID_MAX_QUEUE_REQUESTS": str(QUEUE_REQUESTS)}
        with braid_server(Path(name) / "store", {"--threads": threads}, settings) as server:
            wide = large_answers(Path(name) / "wide.onnx")
            for named, file, sizes in (("net", model, (1, 2, 4)), ("wide", wide, (1,))):
                server.client.register(
                    named, file, batch_sizes=sizes, planner="sequential", wait=True, timeout_s=300
                )
            leave_cores_to_devices(set(cores[:threads]))  # they are the device's
            report |= asyncio.run(measure(server, model, options))
    write_report(options.out, report)
    print("\n".join(table(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
