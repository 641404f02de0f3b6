"""A device worker that is not there: what the front end tells it, and what it would answer."""

import asyncio
from collections import deque
from typing import Any

from braid.core.errors import BraidError, InvalidArtefact, PreconditionFailed
from braid.engine.link.messages import (
    Acknowledged,
    AnyReply,
    AnyRequest,
    DescribeDevice,
    DeviceDescription,
    ExecutableReady,
    LoadModel,
    PrepareExecutable,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
)
from braid.engine.link.options import WorkerOptions
from braid.engine.link.supervisor import LinkState
from braid.engine.link.watch import RunBound

OPTIONS = WorkerOptions(1, 1 << 16, 1 << 16, 1)


class FakeWorker:
    """Answers calls in their order, each when it is told to; holds what a worker holds."""

    name = "cpu"
    options = OPTIONS

    def __init__(self, *, at_once: bool = False) -> None:
        """With ``at_once``, calls are answered when they come."""
        self.state = LinkState.UP
        self.device = DeviceDescription("fake", 1, ("fp32",), (), {})
        self.at_once = at_once
        self.damaged: set[str] = set()  # digests that do not load
        self.models: set[str] = set()
        self.executables: dict[int, str] = {}
        self.calls: deque[tuple[AnyRequest, asyncio.Future[Any]]] = deque()

    async def wake(self) -> None:
        """It never sleeps."""

    def call(self, request: AnyRequest, _: Any = None) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((request, answer))
        if self.at_once:
            self.answer()
        return answer

    startup_call = call

    def run(self, request: RunExecutable, bound: RunBound) -> asyncio.Future[Any]:
        return self.call(request)

    def answer(self) -> None:
        request, answer = self.calls.popleft()
        try:
            reply = self._reply(request)
        except BraidError as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(reply)

    def _reply(self, request: AnyRequest) -> AnyReply:
        match request:
            case LoadModel(digest):
                if digest in self.damaged:
                    raise InvalidArtefact("weights.safetensors was changed after the import")
                self.models.add(digest)
            case UnloadModel(digest):
                self.models.discard(digest)
                self.executables = {n: d for n, d in self.executables.items() if d != digest}
            case PrepareExecutable(number, to_run):
                digest = to_run.program.digest
                if digest not in self.models:
                    raise PreconditionFailed(f"model {digest[:3]} is not loaded")
                self.executables[number] = digest
                return ExecutableReady({"y": to_run.program.specs["x"]}, 0.0)
            case ReleaseExecutable(number):
                self.executables.pop(number, None)
            case DescribeDevice():
                return self.device
            case RunExecutable(number):
                if number not in self.executables:
                    raise PreconditionFailed(f"executable {number} is not prepared")
                return RunDone(1)
        return Acknowledged()
