"""Clients of ModelInfer in one process: raw grpc.aio stubs, so that no SDK is in the numbers.

    python -m benchmarks.load.generator       one Job per line in, one Samples per line out (JSON)

The process stays between jobs; connections do not. A latency is what the caller sees: serialise,
send, wait, receive, parse; with shared memory also write the tensor and read the answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import numpy as np

from benchmarks.load.arrivals import poisson
from benchmarks.load.calls import connected_call
from benchmarks.load.records import Job, Samples
from braid.engine.runtime.memory import keep_freed_memory

Call = Callable[[], Awaitable[np.ndarray]]


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
            if not await _timed(call, started, started >= begin, samples):
                await asyncio.sleep(0.001)
        return time.perf_counter()

    finished = await asyncio.gather(*map(client, calls))
    samples.seconds = max(finished) - begin
    return samples


async def open_loop(
    calls: list[Call], rate_per_s: float, warmup_s: float, measure_s: float, seed: int
) -> Samples:
    """Begin requests at Poisson moments; throughput counts those that were due while measuring."""
    samples = Samples()
    origin = time.perf_counter()
    begin, end = origin + warmup_s, origin + warmup_s + measure_s
    running: set[asyncio.Task[bool]] = set()
    for index, at in enumerate(poisson(rate_per_s, seed)):
        if (due := origin + at) >= end:
            break
        if (pause := due - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        call = calls[index % len(calls)]
        task = asyncio.create_task(_timed(call, due, due >= begin, samples))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running)
    samples.seconds = measure_s
    return samples


async def _timed(call: Call, since: float, is_counted: bool, samples: Samples) -> bool:
    """Make one call; returns whether it was answered."""
    try:
        await call()
    except grpc.aio.AioRpcError as error:
        if is_counted:
            samples.errors[error.code().name] += 1
        return False
    if is_counted:
        samples.latency_us.append(round((time.perf_counter() - since) * 1e6))
    return True


@asynccontextmanager
async def connected(job: Job) -> AsyncIterator[list[Call]]:
    """One call per client, each over a connection of its own, the first answer checked."""
    values = np.random.default_rng(0).standard_normal(job.shape, dtype=np.float32)
    async with AsyncExitStack() as stack:
        calls = [
            await stack.enter_async_context(connected_call(job, values, number))
            for number in range(job.clients)
        ]
        if not np.allclose(await calls[0](), job.scale * values.ravel()):
            raise WrongAnswer(f"{job.address} does not answer with the input times {job.scale}")
        yield calls


async def run(job: Job) -> Samples:
    async with connected(job) as calls:
        if job.rate_per_s is None:
            return await closed_loop(calls, job.warmup_s, job.measure_s)
        return await open_loop(calls, job.rate_per_s, job.warmup_s, job.measure_s, job.seed)


def main() -> None:
    """Run the jobs that come on standard input, until it ends."""
    keep_freed_memory()
    for line in sys.stdin:
        print(asyncio.run(run(Job(**json.loads(line)))).to_json(), flush=True)


if __name__ == "__main__":
    main()
