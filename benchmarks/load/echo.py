"""A bare grpc.aio server that answers Infer with the tensors it was sent.

    python -m benchmarks.load.echo        prints its port, serves until SIGTERM

The least that any Python server of this wire format does: receive, parse, copy into an answer,
serialise, send. What Braid takes longer than this is Braid's.
"""

from __future__ import annotations

import asyncio
import signal

import grpc

from protos.braid.v1 import inference_pb2, inference_pb2_grpc

Context = grpc.aio.ServicerContext[inference_pb2.InferRequest, inference_pb2.InferResponse]


class Echo(inference_pb2_grpc.InferenceServiceServicer):
    """Answers at once, with the request's tensors as outputs."""

    async def Infer(
        self,
        request: inference_pb2.InferRequest,
        context: Context,
    ) -> inference_pb2.InferResponse:
        """Return the inputs."""
        return inference_pb2.InferResponse(
            model=request.model, request_id=request.request_id, outputs=request.inputs
        )


async def serve() -> None:
    """Serve on a free port of the loopback interface until SIGTERM or SIGINT."""
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop(grace=1.0)


if __name__ == "__main__":
    asyncio.run(serve())
