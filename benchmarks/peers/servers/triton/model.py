"""Python backend of Triton: the requests that Triton hands over together become one run."""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Arrays = Sequence[NDArray[np.generic]]


class Engine(Protocol):
    """A model that is loaded."""

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> Arrays: ...


class OnnxRuntime:
    """The model as a session of ONNX Runtime."""

    def __init__(self, model: str, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model, options)

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> Arrays:
        arrays: Arrays = self.session.run(None, feeds)
        return arrays


class OpenVino:
    """The model compiled for one row and, for several together, with an open batch."""

    def __init__(self, model: str, threads: int) -> None:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",  # as everywhere here; by itself BF16 where it can
        }
        core = openvino.Core()
        network = core.read_model(model)
        self.several = core.compile_model(network, "CPU", settings).create_infer_request()
        network.reshape({p.any_name: [1, *p.partial_shape[1:]] for p in network.inputs})
        self.one = core.compile_model(network, "CPU", settings).create_infer_request()

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> Arrays:
        rows = len(next(iter(feeds.values())))
        answer = (self.one if rows == 1 else self.several).infer(feeds, share_inputs=True)
        return list(answer.to_tuple())


class TritonPythonModel:
    """What Triton calls, in a process per instance."""

    def initialize(self, args: Mapping[str, str]) -> None:
        configuration = json.loads(args["model_config"])
        said = {key: value["string_value"] for key, value in configuration["parameters"].items()}
        engine = OpenVino if said["engine"] == "openvino" else OnnxRuntime
        self.engine: Engine = engine(said["model"], int(said["threads"]))
        self.inputs = [port["name"] for port in configuration["input"]]
        self.outputs = [port["name"] for port in configuration["output"]]

    def execute(self, requests: "list[pb_utils.InferenceRequest]") -> list[object]:
        feeds = {}
        for name in self.inputs:
            parts = [pb_utils.get_input_tensor_by_name(r, name).as_numpy() for r in requests]
            feeds[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        arrays = self.engine.run(feeds)
        responses, first = [], 0
        for request in requests:
            last = first + len(request.inputs()[0].as_numpy())
            tensors = [
                pb_utils.Tensor(name, array[first:last])
                for name, array in zip(self.outputs, arrays, strict=True)
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
            first = last
        return responses
