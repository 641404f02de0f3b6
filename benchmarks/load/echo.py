"""A bare grpc.aio server that answers ModelInfer with the tensors it was sent.

    python -m benchmarks.load.echo [--keep-freed-memory]     prints its port, serves until SIGTERM

The least that any Python server of this protocol does: receive, parse, copy into an answer,
serialise, send. What Braid takes longer than this is Braid's. With the option it tunes the
allocator as Braid does (docs/decisions/0005-allocator.md).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from braid.engine.runtime.memory import keep_freed_memory


class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers at once, with the request's contents as output."""

    async def ModelInfer(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        given = request.inputs[0]
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name, raw_output_contents=request.raw_input_contents
        )
        response.outputs.add(name="y", datatype=given.datatype, shape=given.shape)
        return response


async def serve(port: int = 0, ready: str = "") -> None:
    """Serve on ``port`` of the loopback interface, 0 takes a free one, until SIGTERM or SIGINT.

    Prints ``ready``, or the port without it, as soon as it listens.
    """
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(ready or port, flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop(grace=1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.echo")
    parser.add_argument("--keep-freed-memory", action="store_true")
    if parser.parse_args().keep_freed_memory:
        keep_freed_memory()
    asyncio.run(serve())
