"""A device worker over the recording device, in a thread, and the front end's end of its link."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from braid.core.graph import OpGraph
from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.identity import GpuIdentity
from braid.engine.cuda.stage_timer import CudaStageTimer, SlopeOptions
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
from braid.engine.timing.samples import TimerOptions
from braid.engine.worker.loop import Worker
from tests.engine.cuda.graphs import RegistryKernels
from tests.engine.cuda.recording import RecordingDriver

R = TypeVar("R")

GPU = GpuIdentity(
    "NVIDIA H200", (9, 0), 132, 140 << 30, "580.65.06", "13.0", "91002", "2.11.0+cu130"
)
ARENA_BYTES = 1 << 20
DIGEST = "d" * 64


class ServedGpu:
    """A worker on a recording device, and calls to it."""

    def __init__(self) -> None:
        self.driver = RecordingDriver()
        self.error: BaseException | None = None  # what ended the worker
        self.arena = mmap.mmap(-1, ARENA_BYTES)
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(20)
        self._link = BlockingChannel(self._socket)
        self._answers: dict[int, WorkerAnswer | WorkerFailure] = {}
        self._calls = 0
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()

    @torch.inference_mode()
    def _serve(self, theirs: socket.socket) -> None:
        timer = CudaStageTimer(self.driver, 1 << 20, TimerOptions(), SlopeOptions(pace_size=8))
        backend = CudaBackend(self.driver, GPU, lambda _: RegistryKernels(), timer, host_threads=1)
        with theirs:
            try:
                Worker(BlockingChannel(theirs), self.arena, backend).serve()
            except Exception as error:
                self.error = error

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
        """Reply to a call that succeeds."""
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
        self._thread.join(20)
        assert not self._thread.is_alive()


def artefact(folder: Path, graph: OpGraph, weights: Mapping[str, Tensor]) -> Path:
    """A graph as the importer leaves it."""
    shapes = {name: tuple(map(int, spec.shape)) for name, spec in graph.inputs.items()}
    verified = Verified("none", (1,), 0.0, 1e-4)
    write_artefact(
        folder, graph, weights, Report(DIGEST, 1, "onnx", 17, None, (), shapes, {}, (), verified)
    )
    return folder


Fault = Callable[[], Exception]


def fail_launches(driver: RecordingDriver, fault: Fault, first: int = 0, count: int = 1) -> None:
    """Let launches from the ``first`` one on fail, ``count`` times."""
    left = [first, count]

    def before(_: RecordingDriver, run: object) -> None:
        if left[0]:
            left[0] -= 1
        elif left[1]:
            left[1] -= 1
            raise fault()

    driver.before_launch = before
