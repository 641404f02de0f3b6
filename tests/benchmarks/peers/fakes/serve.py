"""A peer that doubles what it is sent, or does what ``--fault`` says."""

import argparse
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

WRONG_FROM = 20
DIES_AT = 12


class Doubling(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers at once, with twice the request's contents as output."""

    def __init__(self, fault: str) -> None:
        self.fault, self.requests = fault, 0

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests += 1
        if self.fault == "dies" and self.requests == DIES_AT:
            os._exit(3)
        (given,), (raw,) = request.inputs, request.raw_input_contents
        is_wrong = self.fault == "wrong" and self.requests >= WRONG_FROM
        y = np.frombuffer(raw, np.float32) * (3 if is_wrong else 2)
        response = service_pb2.ModelInferResponse(raw_output_contents=[y.tobytes()])
        response.outputs.add(name="y", datatype=given.datatype, shape=given.shape)
        return response


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    Path(given.model).with_suffix(f".{given.fault or 'right'}.starts").open("a").write("start\n")
    if given.fault == "spins":
        threading.Thread(target=spin, daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Doubling(given.fault), server)
    server.add_insecure_port(f"127.0.0.1:{given.port}")
    server.start()
    print("UP", flush=True)
    print("READY", flush=True)
    server.wait_for_termination()
