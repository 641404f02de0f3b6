"""What a user writes in an hour: grpc.aio around an OpenVINO model.

Without dynamic batching compiled for latency. With it for throughput, which is OpenVINO's own
answer to many clients: several requests side by side on part of the threads each.
FP32 throughout, as everywhere here: by itself OpenVINO computes in BF16 where the processor can.
"""

import argparse
import asyncio

import grpc
import numpy as np
import openvino
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

DTYPES = {"FP32": np.float32, "INT64": np.int64}


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers ModelInfer with what the compiled model returns."""

    def __init__(self, model: str, threads: int, hint: str) -> None:
        settings = {
            "PERFORMANCE_HINT": hint,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino.Core()
        network = core.read_model(model)
        rows = {port.any_name: list(port.partial_shape)[1:] for port in network.inputs}
        if all(extent.is_static for row in rows.values() for extent in row):  # else all stay open
            network.reshape({name: [1, *row] for name, row in rows.items()})
        self.compiled = core.compile_model(network, "CPU", settings)
        self.outputs = [output.any_name for output in self.compiled.outputs]
        self.free: asyncio.Queue[openvino.InferRequest] = asyncio.Queue()
        for _ in range(self.compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")):
            self.free.put_nowait(self.compiled.create_infer_request())

    async def ModelInfer(self, request: pb.ModelInferRequest, context: object) -> object:
        """Run the model once, on an idle infer request."""
        feeds = {
            tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        infer = await self.free.get()
        try:
            arrays = await asyncio.to_thread(infer.infer, feeds)
            answer = pb.ModelInferResponse(model_name=request.model_name)
            for number, name in enumerate(self.outputs):
                array = arrays[number]
                answer.outputs.add(name=name, datatype="FP32", shape=array.shape)
                answer.raw_output_contents.append(array.tobytes())
        finally:
            self.free.put_nowait(infer)
        return answer


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    hint = "LATENCY" if given.batch_sizes == "1" else "THROUGHPUT"
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    servicer = Servicer(given.model, int(given.threads), hint)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{given.port}")
    await server.start()
    print("READY", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
