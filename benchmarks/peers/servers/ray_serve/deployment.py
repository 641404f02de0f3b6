"""Deployment of Ray Serve. Not in ``serve.py``, where the protocol's messages would be pickled."""

import asyncio

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from ray import serve
from tritonclient.grpc import service_pb2 as pb

BATCH_WAIT_S = 0.002
"""Time for a batch to fill, once its first request is there."""
DTYPES = {"FP32": np.float32, "INT64": np.int64}

Feeds = dict[str, NDArray[np.generic]]
Arrays = list[NDArray[np.generic]]


class Onnx:
    """Answers ModelInfer, the requests that wait together as one batch if ``largest`` allows."""

    def __init__(self, model: str, threads: int, largest: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model, options)
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.several = largest > 1
        self.run_several.set_max_batch_size(largest)

    async def ModelInfer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        feeds = {
            tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        arrays = await (self.run_several(feeds) if self.several else self.run(feeds))
        answer = pb.ModelInferResponse(model_name=request.model_name)
        for name, array in zip(self.outputs, arrays, strict=True):
            answer.outputs.add(name=name, datatype="FP32", shape=array.shape)
            answer.raw_output_contents.append(array.tobytes())
        return answer

    async def run(self, feeds: Feeds) -> Arrays:
        return await asyncio.to_thread(self.session.run, None, feeds)

    @serve.batch(batch_wait_timeout_s=BATCH_WAIT_S)
    async def run_several(self, requests: list[Feeds]) -> list[Arrays]:
        """All outputs of each request, from one run."""
        feeds = {name: np.concatenate([r[name] for r in requests]) for name in requests[0]}
        arrays = await self.run(feeds)
        return [[array[row : row + 1] for array in arrays] for row in range(len(requests))]
