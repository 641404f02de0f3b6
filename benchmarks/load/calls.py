"""One client's call of ModelInfer: its connection, its request, its shared memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.load.records import Job

INPUT, OUTPUT = "x", "y"
"""Names that every loaded model has."""

_CHANNEL_OPTIONS = (
    # Channels of one process otherwise share a connection; clients of their own do not.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

Call = Callable[[], Awaitable[np.ndarray]]


@asynccontextmanager
async def connected_call(job: Job, values: np.ndarray, number: int) -> AsyncIterator[Call]:
    async with AsyncExitStack() as stack:
        channel = grpc.aio.insecure_channel(job.address, options=_CHANNEL_OPTIONS)
        await stack.enter_async_context(channel)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        if job.shared_memory:
            memory = stack.enter_context(_shared(2 * values.nbytes))
            yield await _shared_call(stub, memory, job, values, f"{os.getpid()}_{number}")
            await stub.SystemSharedMemoryUnregister(
                service_pb2.SystemSharedMemoryUnregisterRequest(name=f"{os.getpid()}_{number}")
            )
        else:
            yield _plain_call(stub, job, values)


def _plain_call(stub: Any, job: Job, values: np.ndarray) -> Call:
    request = _request(job, values.shape)
    request.raw_input_contents.append(values.tobytes())

    async def call() -> np.ndarray:
        response = await stub.ModelInfer(request, timeout=job.timeout_s)
        return np.frombuffer(response.raw_output_contents[0], np.float32)

    return call


async def _shared_call(
    stub: Any, memory: SharedMemory, job: Job, values: np.ndarray, region: str
) -> Call:
    size = values.nbytes
    await stub.SystemSharedMemoryRegister(
        service_pb2.SystemSharedMemoryRegisterRequest(
            name=region, key=memory.name, byte_size=2 * size
        )
    )
    request = _request(job, values.shape)
    output = request.outputs.add(name=OUTPUT)
    for tensor, offset in ((request.inputs[0], 0), (output, size)):
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = size
        tensor.parameters["shared_memory_offset"].int64_param = offset
    given = np.ndarray(values.shape, np.float32, memory.buf)
    answer = np.ndarray(values.shape, np.float32, memory.buf, offset=size)

    async def call() -> np.ndarray:
        given[...] = values
        await stub.ModelInfer(request, timeout=job.timeout_s)
        return answer.ravel().copy()

    return call


def _request(job: Job, shape: tuple[int, ...]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=job.model)
    request.inputs.add(name=INPUT, datatype="FP32", shape=shape)
    return request


@contextmanager
def _shared(size_bytes: int) -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=size_bytes)
    try:
        yield memory
    finally:
        memory.unlink()  # unmapped when the last view of it is gone
