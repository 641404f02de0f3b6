"""The server under attack, with canaries beside it, and a model that must answer.

Target.start ──> gRPC port, HTTP port; both take a token
    └── check: nobody ran code, the server and its worker are up, answers are right,
               nothing is left behind, memory and descriptors are bounded
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import onnx
import psutil
from onnx import TensorProto

from braid_client import Client
from braid_client.wire import inference_pb2, inference_pb2_grpc
from tests.clock import until
from tests.models.small import by_values, doubling, repeating
from tests.models.strings import greeting
from tests.service.server_process import FOR_TESTS, ServerProcess

KEPT = "kept"  # the model that no attack names
PREY = "prey"  # the one that they name
TEXT = "text"  # the one that they name and that takes strings
GROWN = "grown"  # the one whose answers are as large as its caller wants
VALUES = "values"  # the one that they name and that takes indices, lengths and divisors
TOKEN = "of-the-attacked-server-only"
CALLS_MEMORY_BYTES = 256 << 20
MAX_GROWTH_BYTES = 400 << 20
MAX_MORE_DESCRIPTORS = 40


class Canaries:
    """A folder and a listener that only code of an attack would reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.secret = folder / "secret"
        self.secret.write_text("never read by the server")
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def marker(self) -> Path:
        """File that an attack's code would make."""
        return self.folder / "marker"

    def findings(self) -> list[str]:
        """What code of an attack has done."""
        found = [] if os.listdir(self.folder) == ["secret"] else [f"files: {self.folder}"]
        if self.secret.read_text() != "never read by the server":
            found.append("the secret was written")
        return found + [f"a connection: {data!r}" for data in self.heard]

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                self.heard.append(b"connected")


@dataclass
class Target:
    """A server with some models, and what it was like before the attack."""

    server: ServerProcess
    canaries: Canaries
    metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {TOKEN}"),)
    _front: psutil.Process = field(init=False)
    _workers: int = 0
    _memory: int = 0
    _descriptors: int = 0
    _log_at: int = 0

    @classmethod
    def start(
        cls, folder: Path, command: Sequence[str] = FOR_TESTS, grpc_port: str = "0"
    ) -> Target:
        canaries = Canaries(folder / "canaries")
        server = ServerProcess(
            folder / "store",
            command=command,
            BRAID_ADMIN_TOKEN=TOKEN,
            BRAID_SYSTEM_SHARED_MEMORY="true",
            BRAID_LOG_LEVEL="INFO",
            BRAID_MAX_MODELS="60",
            BRAID_CALLS_MEMORY_BYTES=str(CALLS_MEMORY_BYTES),
            BRAID_IMPORT_WALL_SECONDS="90",
            BRAID_IMPORT_RUN_SECONDS="10",
            BRAID_UPLOAD_IDLE_SECONDS="20",
        ).start(grpc_port)
        target = cls(server, canaries)
        try:
            target._register(folder)
        except BaseException:
            server.end()
            raise
        target._front = psutil.Process(server.process.pid)
        target._workers = server.starts_of_worker
        target.remember()
        return target

    def _register(self, folder: Path) -> None:
        numbers, text = doubling(folder / "doubling.onnx", TensorProto.FLOAT), folder / "text.onnx"
        onnx.save_model(greeting(), text)
        grown, values = repeating(folder / "grown.onnx"), by_values(folder / "values.onnx")
        models = {KEPT: numbers, PREY: numbers, TEXT: text, VALUES: values}
        self.server.register(models, (1, 2)).register({GROWN: grown})
        self.answer()

    def admin(self) -> Client:
        return Client(self.address, token=TOKEN)

    @property
    def address(self) -> str:
        """host:port of gRPC."""
        return self.server.address

    def remember(self) -> None:
        """Take what is held now for what the server may hold later."""
        self._memory = self._front.memory_info().rss
        self._descriptors = self._front.num_fds()

    def answer(self) -> None:
        """Ask the model that no attack names; it must answer right."""
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=x.shape, data=x.tobytes())
        request = inference_pb2.InferRequest(model=KEPT, inputs=[tensor])
        with grpc.insecure_channel(self.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            found = stub.Infer(request, timeout=60, metadata=self.metadata).outputs[0].data
        assert np.array_equal(np.frombuffer(found, np.float32).reshape(2, 3), 2 * x)

    def check(self) -> None:
        """Raise AssertionError for whatever an attack has achieved."""
        assert self.canaries.findings() == []
        assert self.server.process.poll() is None, self.server.log[-4000:]
        assert self.server.starts_of_worker == self._workers, "a device worker was started again"
        self.answer()
        until(lambda: self._grown() == [], 60, self._grown)
        uploads = self.server.store / "uploads"
        until(lambda: not any(uploads.glob("*.part")), 60, lambda: list(uploads.iterdir()))

    def tracebacks(self) -> list[str]:
        """Ends of the log's tracebacks since the last call."""
        text = self.server.log[self._log_at :]
        self._log_at += len(text)
        return [part[:3000] for part in text.split("Traceback (most recent call last)")[1:]]

    def end(self) -> None:
        """Stop the server, which must still be able to."""
        self.canaries.close()
        try:
            assert self.server.stop() == 0, self.server.log[-4000:]
        finally:
            self.server.end()

    def _grown(self) -> list[str]:
        memory = self._front.memory_info().rss - self._memory
        descriptors = self._front.num_fds() - self._descriptors
        found = []
        if memory > MAX_GROWTH_BYTES:
            found.append(f"{memory >> 20} MiB more memory")
        if descriptors > MAX_MORE_DESCRIPTORS:
            found.append(f"{descriptors} more descriptors")
        return found
