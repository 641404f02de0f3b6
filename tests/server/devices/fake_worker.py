"""A device worker that is not there: what the front end tells it, and what it would answer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from braid.core.errors import BraidError, InvalidArtefact, PreconditionFailed
from braid.engine.link.options import WorkerOptions
from braid.engine.link.supervisor import LinkState
from braid.engine.link.watch import RunBound

OPTIONS = WorkerOptions(1, 1 << 16, 1 << 16, 1, keep_spare=False)


class FakeWorker:
    """Answers calls in their order, each when it is told to; holds what a worker holds."""

    name = "cpu"
    options = OPTIONS

    def __init__(self, *, at_once: bool = False) -> None:
        """With ``at_once``, calls are answered when they come."""
        self.state = LinkState.UP
        self.facts = {"device_key": "fake", "precisions": ("fp32",), "software": {}}
        self.at_once = at_once
        self.damaged: set[str] = set()  # digests that do not load
        self.models: set[str] = set()
        self.executables: dict[int, str] = {}
        self.calls: deque[tuple[str, dict[str, Any], asyncio.Future[Any]]] = deque()

    def call(self, op: str, _: Any = None, **fields: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((op, fields, answer))
        if self.at_once:
            self.answer()
        return answer

    startup_call = call

    def infer(self, number: int, offset: int, bound: RunBound) -> asyncio.Future[Any]:
        return self.call("infer", number=number, offset=offset)

    def answer(self) -> None:
        op, fields, answer = self.calls.popleft()
        try:
            result = getattr(self, f"_{op}")(**fields)
        except BraidError as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    def _load(self, digest: str, path: str) -> None:
        if digest in self.damaged:
            raise InvalidArtefact("weights.safetensors was changed after the import")
        self.models.add(digest)

    def _unload(self, digest: str) -> None:
        self.models.discard(digest)
        self.executables = {n: d for n, d in self.executables.items() if d != digest}

    def _prepare(self, number: int, program: Any, **_: Any) -> Any:
        digest = program["digest"]
        if digest not in self.models:
            raise PreconditionFailed(f"model {digest[:3]} is not loaded")
        self.executables[number] = digest
        return {"outputs": {"y": dict(program["inputs"])["x"]}}

    def _release(self, number: int) -> None:
        self.executables.pop(number, None)

    def _infer(self, number: int, offset: int) -> Any:
        if number not in self.executables:
            raise PreconditionFailed(f"executable {number} is not prepared")
        return {"compute_us": 1}
