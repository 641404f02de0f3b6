"""Clients of the Infer RPC in one process: raw grpc.aio stubs, so that no SDK is in the numbers.

    python -m benchmarks.load.generator       one Job per line in, one Samples per line out (JSON)

The process stays between jobs; connections do not. A latency is what the caller sees: serialise,
send, wait, receive, parse.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

import grpc
import numpy as np

from benchmarks.load.records import Job, Samples
from protos.braid.v1 import inference_pb2, inference_pb2_grpc

_CHANNEL_OPTIONS = (
    # Channels of one process otherwise share a connection; clients of their own do not.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

INPUT = "x"
"""Name of the input that every loaded model has."""

Call = Callable[[], Awaitable[inference_pb2.InferResponse]]


class WrongAnswer(Exception):
    """The endpoint answered with something else than the input times the scale."""


async def closed_loop(calls: list[Call], warmup_s: float, measure_s: float) -> Samples:
    """Let each of ``calls`` be one client that waits for its answer before it sends again.

    Requests that begin during the warm-up are not counted, those that end after the measurement
    are: dropping them would drop the slow ones.
    """
    samples = Samples()
    begin = time.perf_counter() + warmup_s
    end = begin + measure_s

    async def client(call: Call) -> float:
        while (started := time.perf_counter()) < end:
            try:
                response = await call()
            except grpc.aio.AioRpcError as error:
                samples.errors[error.code().name] += 1
                await asyncio.sleep(0.001)
                continue
            if started >= begin:
                _keep(samples, time.perf_counter() - started, response)
        return time.perf_counter()

    finished = await asyncio.gather(*map(client, calls))
    samples.seconds = max(finished) - begin
    return samples


def _keep(samples: Samples, latency_s: float, response: inference_pb2.InferResponse) -> None:
    samples.latency_us.append(round(latency_s * 1e6))
    if response.HasField("timing"):
        samples.queue_us.append(response.timing.queue_us)
        samples.compute_us.append(response.timing.compute_us)
        samples.total_us.append(response.timing.total_us)
        samples.batch_rows.append(response.batch_rows)


@asynccontextmanager
async def connected(job: Job) -> AsyncIterator[list[Call]]:
    """One call per client, each over a connection of its own, the first answer checked."""
    values = np.random.default_rng(0).standard_normal(job.shape, dtype=np.float32)
    tensor = inference_pb2.Tensor(name=INPUT, dtype="FP32", shape=job.shape, data=values.tobytes())
    request = inference_pb2.InferRequest(model=job.model, inputs=[tensor])
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(job.clients):
            channel = grpc.aio.insecure_channel(job.address, options=_CHANNEL_OPTIONS)
            await stack.enter_async_context(channel)
            calls.append(_call(channel, request, job.timeout_s))
        response = await calls[0]()
        answer = np.frombuffer(response.outputs[0].data, dtype=np.float32)
        if not np.allclose(answer, job.scale * values.ravel()):
            raise WrongAnswer(f"{job.address} does not answer with the input times {job.scale}")
        yield calls


def _call(channel: grpc.aio.Channel, request: inference_pb2.InferRequest, timeout_s: float) -> Call:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return lambda: stub.Infer(request, timeout=timeout_s)


async def run(job: Job) -> Samples:
    """Connect, check one answer, warm up, measure."""
    async with connected(job) as calls:
        return await closed_loop(calls, job.warmup_s, job.measure_s)


def main() -> None:
    """Run the jobs that come on standard input, until it ends."""
    for line in sys.stdin:
        samples = asyncio.run(run(Job(**json.loads(line))))
        print(json.dumps(asdict(samples)), flush=True)


if __name__ == "__main__":
    main()
