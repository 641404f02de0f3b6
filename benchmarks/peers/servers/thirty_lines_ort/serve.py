"""What a user writes in an hour: grpc.aio around ``onnxruntime.InferenceSession``."""

import argparse
import asyncio

import grpc
import numpy as np
import onnxruntime
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

DTYPES = {"FP32": np.float32, "INT64": np.int64}


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers ModelInfer with what the session returns."""

    def __init__(self, model: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model, options)
        self.outputs = [output.name for output in self.session.get_outputs()]

    async def ModelInfer(self, request: pb.ModelInferRequest, context: object) -> object:
        feeds = {
            tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        arrays = await asyncio.to_thread(self.session.run, None, feeds)
        answer = pb.ModelInferResponse(model_name=request.model_name)
        for name, array in zip(self.outputs, arrays, strict=True):
            answer.outputs.add(name=name, datatype="FP32", shape=array.shape)
            answer.raw_output_contents.append(array.tobytes())
        return answer


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    servicer = Servicer(given.model, int(given.threads))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{given.port}")
    await server.start()
    print("READY", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
