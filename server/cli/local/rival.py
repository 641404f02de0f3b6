"""A model in another runtime behind ``braid.v1``, as ``braid benchmark`` measures it.

python -m braid.server.cli.local.rival RUNTIME THREADS FILE
    ──> its address, or why there is none, on stdout; ends with its stdin
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from braid.core.allowance import cpu_allowance
from braid.engine.program import openvino_library
from braid_client.tensors import array_of, stored
from braid_client.wire import inference_pb2 as wire

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
Run = Callable[[Mapping[str, Any]], Iterable[Any]]


def _onnxruntime(file: str, threads: int) -> tuple[list[str], Run]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return [output.name for output in session.get_outputs()], lambda x: session.run(None, x)


def _openvino(file: str, threads: int) -> tuple[list[str], Run]:
    hint = "LATENCY" if threads > 1 else "THROUGHPUT"  # whose streams have one thread each
    wanted = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": cpu_allowance().threads}
    model = openvino_library.load().Core().compile_model(file, "CPU", wanted)
    of_thread = threading.local()

    def run(inputs: Mapping[str, Any]) -> Iterable[Any]:
        if not hasattr(of_thread, "request"):
            of_thread.request = model.create_infer_request()
        return of_thread.request.infer(inputs).values()  # type: ignore[no-any-return]

    return [output.any_name for output in model.outputs], run


def serve(runtime: str, threads: str, file: str) -> None:
    opening = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime]
    names, run = opening(file, int(threads))

    def infer(request: wire.InferRequest, _: Any) -> wire.InferResponse:
        arrays = map(np.asarray, run({x.name: array_of(x, x.data) for x in request.inputs}))
        response = wire.InferResponse()
        for name, (dtype, value) in zip(names, map(stored, names, arrays), strict=True):
            response.outputs.add(name=name, dtype=dtype, shape=value.shape, data=value.tobytes())
        return response

    server = grpc.server(ThreadPoolExecutor(256), options=OPTIONS)
    read, write = wire.InferRequest.FromString, wire.InferResponse.SerializeToString
    methods = {"Infer": grpc.unary_unary_rpc_method_handler(infer, read, write)}
    service = grpc.method_handlers_generic_handler("braid.v1.InferenceService", methods)
    server.add_generic_rpc_handlers([service])
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    sys.stdin.read()


if __name__ == "__main__":
    try:
        serve(*sys.argv[1:])
    except Exception as error:
        print(" ".join(str(error).split())[:300])
