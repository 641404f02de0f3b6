"""A real server as a subprocess, and small real models to feed it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from braid_client import Client
from engine.importer.limits import ImportLimits
from engine.importer.pipeline import import_upload
from engine.importer.sources import open_upload

START_SECONDS = 60.0


class ServerProcess:
    """``braid serve`` on free ports."""

    def __init__(self, store: Path, **environment: str) -> None:
        self.store = store
        self.log_path = store.with_name(f"{store.name}.log")
        self._environment = {**os.environ, "BRAID_LOG_LEVEL": "DEBUG", **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, grpc_port: str = "0") -> ServerProcess:
        """Start, and wait until it is ready."""
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "server.cli.main", "serve"),
                    *("--store", str(self.store), "--grpc-port", grpc_port, "--http-port", "0"),
                ],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await(r" ready .*grpc=(\S+)")
        return self

    def _await(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.log):
                return found
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} did not appear:\n{self.log}")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """Everything logged so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def address(self) -> str:
        """host:port of gRPC."""
        return self._await(r" ready .*grpc=(\S+)")[1]

    @property
    def worker_pid(self) -> int:
        """Process id of the newest device worker."""
        return int(re.findall(r"worker (\d+) of \S+ up", self.log)[-1])

    def worker_of(self, device: str) -> int:
        """Process id of a device's newest worker."""
        return int(re.findall(rf"worker (\d+) of {re.escape(device)} up", self.log)[-1])

    @property
    def starts_of_worker(self) -> int:
        """How often a device worker came up."""
        return len(re.findall(r"worker \d+ of \S+ up", self.log))

    @property
    def http_address(self) -> str:
        """host:port of metrics and console."""
        return self._await(r" ready .*http=(\S+)")[1]

    @property
    def http_port(self) -> int:
        """The HTTP port."""
        return int(self._await(r" ready .*http=\S+:(\d+)")[1])

    def http(self, path: str) -> str:
        """GET a path of the HTTP port."""
        with urlopen(f"http://{self.http_address}{path}", timeout=10) as response:
            return str(response.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry ``labels``; 0 if there are none."""
        total = 0.0
        for line in self.http("/metrics").splitlines():
            if re.match(rf"{name}(\{{| )", line) and all(
                f'{label}="{value}"' in line for label, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def import_ahead(self, *models: Path) -> None:
        """Make the artefacts that registering ``models`` would, without a process for each.

        For tests that are not about imports: 20 ms instead of 2.5 s. Call it once the server is
        up, as it sweeps what it does not know when it starts.
        """
        threads = torch.get_num_threads()
        for model in models:
            artefact = self.store / "artefacts" / sha256(model.read_bytes()).hexdigest()
            if artefact.exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                source = open_upload(model, Path(folder))
                import_upload(source, model, artefact, ImportLimits(), lambda *_: None, {})
        torch.set_num_threads(threads)

    def client(self) -> Client:
        """A client of this server, with the admin token if it has one."""
        file = self._environment.get("BRAID_ADMIN_TOKEN_FILE")
        return Client(self.address, token=Path(file).read_text().strip() if file else None)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def kill_everything(self) -> None:
        """SIGKILL the front end; its children notice and end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code once it has ended."""
        if self.process.poll() is None:
            self.terminate()
        return self.process.wait(timeout=40)


def free_port() -> int:
    """A port that was free a moment ago, for programs that cannot be asked for any."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def small_cnn(path: Path, *, branches: int = 3, size: int = 16) -> Path:
    """A convolutional network with parallel branches; symbolic batch, seeded weights.

    x [batch, 3, size, size] -> conv -> (conv, conv, ...) -> concat -> conv -> y
    """
    rng = np.random.default_rng(0)
    weights, nodes = [], []

    def conv(source: str, result: str, inner: int, outer: int) -> None:
        weight = rng.normal(0, (2 / (inner * 9)) ** 0.5, (outer, inner, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{result}_w"))
        nodes.append(
            helper.make_node("Conv", [source, f"{result}_w"], [f"{result}_c"], pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"{result}_c"], [result]))

    conv("x", "stem", 3, 8)
    for branch in range(branches):
        conv("stem", f"branch{branch}", 8, 8)
    names = [f"branch{branch}" for branch in range(branches)]
    nodes.append(helper.make_node("Concat", names, ["joined"], axis=1))
    conv("joined", "y", 8 * branches, 4)
    shape: list[str | int] = ["batch", 3, size, size]
    graph = helper.make_graph(
        nodes,
        "small_cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, size, size])],
        weights,
    )
    return save(graph, path)


def embedding(path: Path) -> Path:
    """ids INT64 [batch, 4] -> rows of a table of 10: an index out of range is a bad value."""
    table = numpy_helper.from_array(np.arange(20, dtype=np.float32).reshape(10, 2), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 2])],
        [table],
    )
    return save(graph, path)


def identity(path: Path) -> Path:
    """x [batch, 3] -> the same, and a constant: a model without a single operator to run."""
    constant = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "two")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["two"], ["c"])],
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("c", TensorProto.FLOAT, [2]),
        ],
        [constant],
    )
    return save(graph, path)


def save(graph: onnx.GraphProto, path: Path) -> Path:
    """Write a model of opset 17."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path
