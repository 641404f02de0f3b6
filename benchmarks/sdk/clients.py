"""One SDK as a caller uses it: numpy arrays in, numpy arrays out, one request after the other.

    python -m benchmarks.sdk.clients       one Job per line in, one Turn per line out (JSON)

Kinds: ``sync``, ``aio``, and a stream of either on which each request waits for the answer to the
one before. A latency is what the caller sees: from arrays to arrays.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from braid_client import AsyncClient, Client, InferRequest

Arrays = Mapping[str, np.ndarray]
Call = Callable[[], Arrays]
AsyncCall = Callable[[], Awaitable[Arrays]]


@dataclass(frozen=True, slots=True)
class Job:
    """Model, shape of its input, and seconds to load the server for."""

    sdk: str  # "braid" or "triton"
    kind: str  # "sync", "aio", "stream" or "aio stream"
    address: str
    model: str
    input: str
    output: str
    shape: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Latencies of one turn in microseconds, and the sum of the outputs, to be compared."""

    latency_us: list[int]
    checksum: float


def _values(job: Job) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(job.shape, dtype=np.float32)


def _triton_inputs(job: Job, values: np.ndarray) -> list[Any]:
    given = triton.InferInput(job.input, values.shape, "FP32")
    given.set_data_from_numpy(values)
    return [given]


@contextmanager
def _braid_sync(job: Job, values: np.ndarray) -> Iterator[Call]:
    with Client(job.address) as client:
        yield lambda: client.infer(job.model, {job.input: values}).outputs


@contextmanager
def _triton_sync(job: Job, values: np.ndarray) -> Iterator[Call]:
    with triton.InferenceServerClient(job.address) as client:

        def call() -> Arrays:
            result = client.infer(job.model, _triton_inputs(job, values))
            return {job.output: result.as_numpy(job.output)}

        yield call


@contextmanager
def _braid_stream(job: Job, values: np.ndarray) -> Iterator[Call]:
    given: queue.SimpleQueue[InferRequest | None] = queue.SimpleQueue()
    with Client(job.address) as client:
        answers = client.infer_stream(iter(given.get, None))

        def call() -> Arrays:
            given.put(InferRequest(job.model, {job.input: values}))
            return next(answers).unwrap().outputs

        yield call
        given.put(None)


@contextmanager
def _triton_stream(job: Job, values: np.ndarray) -> Iterator[Call]:
    taken: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton.InferenceServerClient(job.address) as client:
        client.start_stream(lambda result, error: taken.put(error or result))

        def call() -> Arrays:
            client.async_stream_infer(job.model, _triton_inputs(job, values))
            return {job.output: taken.get().as_numpy(job.output)}

        yield call
        client.stop_stream()


@asynccontextmanager
async def _braid_aio(job: Job, values: np.ndarray) -> AsyncIterator[AsyncCall]:
    async with AsyncClient(job.address) as client:

        async def call() -> Arrays:
            return (await client.infer(job.model, {job.input: values})).outputs

        yield call


@asynccontextmanager
async def _triton_aio(job: Job, values: np.ndarray) -> AsyncIterator[AsyncCall]:
    async with triton_aio.InferenceServerClient(job.address) as client:

        async def call() -> Arrays:
            result = await client.infer(job.model, _triton_inputs(job, values))
            return {job.output: result.as_numpy(job.output)}

        yield call


async def _each(given: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while (item := await given.get()) is not None:
        yield item


@asynccontextmanager
async def _braid_aio_stream(job: Job, values: np.ndarray) -> AsyncIterator[AsyncCall]:
    given: asyncio.Queue[InferRequest | None] = asyncio.Queue()
    async with AsyncClient(job.address) as client:
        answers = client.infer_stream(_each(given))

        async def call() -> Arrays:
            given.put_nowait(InferRequest(job.model, {job.input: values}))
            return (await anext(answers)).unwrap().outputs

        yield call
        given.put_nowait(None)


@asynccontextmanager
async def _triton_aio_stream(job: Job, values: np.ndarray) -> AsyncIterator[AsyncCall]:
    given: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    async with triton_aio.InferenceServerClient(job.address) as client:
        answers = aiter(client.stream_infer(_each(given)))

        async def call() -> Arrays:
            given.put_nowait({"model_name": job.model, "inputs": _triton_inputs(job, values)})
            result, error = await anext(answers)
            assert error is None, error
            return {job.output: result.as_numpy(job.output)}

        yield call
        given.put_nowait(None)


SYNC = {
    ("braid", "sync"): _braid_sync,
    ("triton", "sync"): _triton_sync,
    ("braid", "stream"): _braid_stream,
    ("triton", "stream"): _triton_stream,
}
AIO = {
    ("braid", "aio"): _braid_aio,
    ("triton", "aio"): _triton_aio,
    ("braid", "aio stream"): _braid_aio_stream,
    ("triton", "aio stream"): _triton_aio_stream,
}


def _sync_turn(job: Job) -> Turn:
    with SYNC[job.sdk, job.kind](job, _values(job)) as call:
        checksum = _checksum(call(), job)
        end = time.perf_counter() + job.seconds
        latency_us = []
        while (began := time.perf_counter()) < end:
            call()
            latency_us.append(round((time.perf_counter() - began) * 1e6))
    return Turn(latency_us, checksum)


async def _aio_turn(job: Job) -> Turn:
    async with AIO[job.sdk, job.kind](job, _values(job)) as call:
        checksum = _checksum(await call(), job)
        end = time.perf_counter() + job.seconds
        latency_us = []
        while (began := time.perf_counter()) < end:
            await call()
            latency_us.append(round((time.perf_counter() - began) * 1e6))
    return Turn(latency_us, checksum)


def _checksum(outputs: Arrays, job: Job) -> float:
    return float(np.abs(outputs[job.output]).astype(np.float64).sum())


def main() -> None:
    with asyncio.Runner() as runner:  # grpc.aio wants one event loop for the whole process
        for line in sys.stdin:
            given = json.loads(line)
            job = Job(**{**given, "shape": tuple(given["shape"])})
            is_sync = (job.sdk, job.kind) in SYNC
            turn = _sync_turn(job) if is_sync else runner.run(_aio_turn(job))
            print(json.dumps(asdict(turn)), flush=True)


if __name__ == "__main__":
    main()
