"""A model in another runtime behind ``braid.v1``, as ``braid benchmark`` measures it.

python -m braid.server.cli.local.rival RUNTIME THREADS FILE
    ──> its address, or why there is none, on stdout; ends with its stdin
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from braid.core.allowance import cpu_allowance
from braid.engine.program import openvino_library
from braid_client.tensors import array_of, stored
from braid_client.wire import inference_pb2 as wire
from braid_client.wire import inference_pb2_grpc

MOST_AT_ONCE = 256
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def _onnxruntime(file: str, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def _openvino(file: str, threads: int) -> Run:
    hint = "LATENCY" if threads > 1 else "THROUGHPUT"  # whose streams have one thread each
    wanted = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": cpu_allowance().threads}
    model = openvino_library.load().Core().compile_model(file, "CPU", wanted)
    names = [output.any_name for output in model.outputs]
    of_thread = threading.local()

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        if not hasattr(of_thread, "request"):
            of_thread.request = model.create_infer_request()
        return dict(zip(names, of_thread.request.infer(feeds).values(), strict=True))

    return run


class Rival(inference_pb2_grpc.InferenceServiceServicer):
    """The service of one model."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def Infer(self, request: wire.InferRequest, context: Any) -> wire.InferResponse:
        outputs = self._run({given.name: array_of(given, given.data) for given in request.inputs})
        tensors = [(name, *stored(name, np.asarray(value))) for name, value in outputs.items()]
        return wire.InferResponse(
            outputs=[
                wire.Tensor(name=name, dtype=dtype, shape=value.shape, data=value.tobytes())
                for name, dtype, value in tensors
            ]
        )


def main() -> None:
    runtime, threads, file = sys.argv[1:]
    try:
        run = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime](file, int(threads))
    except Exception as error:
        print(" ".join(str(error).split())[:300])
        return
    server = grpc.server(ThreadPoolExecutor(MOST_AT_ONCE), options=OPTIONS)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Rival(run), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
