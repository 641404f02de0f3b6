"""A device worker in a thread, and the front end's end of its link."""

import mmap
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from braid.core.graph import OpGraph
from braid.engine.device import Backend
from braid.engine.importer.artefact import write_artefact
from braid.engine.importer.host.report import Report, Verified
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    AnyRequest,
    WorkerAnswer,
    WorkerCall,
    WorkerFailure,
    WorkerRequest,
)
from braid.engine.runtime.memory import FreedMemory
from braid.engine.runtime.stopping import stop_signal
from braid.engine.worker.loop import Worker
from braid.engine.worker.process.current_work import CurrentWork

R = TypeVar("R")
DIGEST = "d" * 64


def artefact(folder: Path, graph: OpGraph, weights: Mapping[str, Tensor]) -> Path:
    """A graph as the importer leaves it."""
    shapes = {name: tuple(map(int, spec.shape)) for name, spec in graph.inputs.items()}
    verified = Verified("none", (1,), 0.0, 1e-4)
    report = Report(DIGEST, 1, "onnx", 17, None, (), shapes, {}, (), verified)
    write_artefact(folder, graph, weights, report)
    return folder


class ServedWorker:
    """A worker in a thread, and calls to it."""

    def __init__(
        self,
        make_backend: Callable[[], Backend],
        arena_bytes: int,
        freed: FreedMemory | None = None,
        prepare: Callable[[Worker], object] = id,
    ) -> None:
        """Serve the device of ``make_backend``, which is called in the worker's thread.

        ``prepare`` is given the worker before it serves.
        """
        self._freed = freed
        self._prepare = prepare
        self.error: BaseException | None = None  # what ended the worker
        self.work = CurrentWork()
        stop_signal.set(None)
        self.arena = mmap.mmap(-1, arena_bytes)
        self._make_backend = make_backend
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(120)
        self._link = BlockingChannel(self._socket)
        self._answers: dict[int, WorkerAnswer | WorkerFailure] = {}
        self._calls = 0
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()

    @torch.inference_mode()
    def _serve(self, theirs: socket.socket) -> None:
        backend = self._make_backend()
        with theirs:
            try:
                worker = Worker(
                    BlockingChannel(theirs), self.arena, backend, self.work, self._freed
                )
                cast(Any, worker)._background.clear()  # torch is warm; runs wait for nothing else
                self._prepare(worker)
                worker.serve()
            except Exception as error:
                self.error = error
        backend.close()

    def send(self, request: AnyRequest) -> int:
        """Send a call; returns its number."""
        self._calls += 1
        self._link.send(WorkerCall(self._calls, request))
        return self._calls

    def answer(self, number: int) -> WorkerAnswer | WorkerFailure:
        """Wait for the answer to a call. ConnectionError: the worker ended without one."""
        while number not in self._answers:
            messages = self._link.receive()
            if messages is None:
                raise ConnectionError("the worker ended")
            for message in messages:
                if isinstance(message, WorkerAnswer | WorkerFailure):
                    self._answers[message.call] = message
        return self._answers.pop(number)

    def call(self, request: WorkerRequest[R]) -> R:
        answer = self.answer(self.send(cast(AnyRequest, request)))
        assert isinstance(answer, WorkerAnswer), answer
        return cast(R, answer.reply)

    def fail(self, request: AnyRequest) -> tuple[str, str]:
        """Class and text of the error that a call ends with."""
        answer = self.answer(self.send(request))
        assert isinstance(answer, WorkerFailure), answer
        return answer.error_class, answer.text

    def view(self, offset: int, shape: Sequence[int]) -> Tensor:
        """FP32 elements of the arena."""
        count = 1
        for extent in shape:
            count *= extent
        return torch.frombuffer(self.arena, dtype=torch.float32, count=count, offset=offset).view(
            *shape
        )

    def close(self) -> None:
        """Close the link, as a front end that goes; the worker ends."""
        self._socket.close()
        self._thread.join(120)
        assert not self._thread.is_alive()
