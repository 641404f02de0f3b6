"""MLServer with a model that doubles its input, in an environment of its own.

    python -m venv mlserver && mlserver/bin/pip install mlserver
    python -m benchmarks.serving --mlserver mlserver/bin/python

It cannot share Braid's environment: both bring the protocol's messages, and pin other versions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.load.children import ChildFailed, free_ports, running
from benchmarks.load.records import Endpoint

_START_S = 120.0

_RUNTIME = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Doubling(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("y", x * 2.0)]
        )
"""


@contextmanager
def mlserver_endpoint(python: Path, scale: float, workers: int, folder: Path) -> Iterator[Endpoint]:
    """MLServer on free ports; ``workers`` as its setting ``parallel_workers`` (default 1)."""
    assert scale == 2.0, "the runtime below doubles"
    home = folder / f"mlserver-{workers}"
    home.mkdir()
    http, rpc, metrics = free_ports(3)
    settings = {
        "http_port": http,
        "grpc_port": rpc,
        "metrics_port": metrics,
        "host": "127.0.0.1",
        "parallel_workers": workers,
        "grpc_max_message_length": 64 << 20,
        "debug": False,
    }
    (home / "settings.json").write_text(json.dumps(settings))
    model = {"name": "doubling", "implementation": "doubling.Doubling"}
    (home / "model-settings.json").write_text(json.dumps(model))
    (home / "doubling.py").write_text(_RUNTIME)
    program = str(python.absolute().with_name("mlserver"))
    with running([program, "start", "."], cwd=home, log=home / "log") as process:
        address = f"127.0.0.1:{rpc}"
        _wait_until_ready(address, process, home / "log")
        name = "mlserver" if workers else "mlserver-inline"
        yield Endpoint(name, address, "doubling", scale)


def _wait_until_ready(address: str, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while True:
            try:
                wanted = service_pb2.ModelReadyRequest(name="doubling")
                if stub.ModelReady(wanted, timeout=5).ready:
                    return
            except grpc.RpcError as error:
                print(f"waiting for MLServer: {error.code().name}", file=sys.stderr)
            if process.poll() is not None or time.monotonic() > deadline:
                raise ChildFailed(f"MLServer did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
