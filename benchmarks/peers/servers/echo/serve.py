"""A bare grpc.aio server that answers ModelInfer with the tensors it was sent.

The least that any Python server of this protocol does: receive, parse, copy into an answer,
serialise, send. What Braid takes longer than this is Braid's. It tunes the allocator as Braid does
(docs/decisions/0005-allocator.md).
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

sys.path.insert(0, str(Path(__file__).parents[4]))

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


async def serve(port: int) -> None:
    """Serve on ``port`` of the loopback interface until SIGTERM or SIGINT."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Echo(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("READY", flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop(grace=1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    keep_freed_memory()
    asyncio.run(serve(int(parser.parse_args().port)))
