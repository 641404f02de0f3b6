"""Plans that are ready to run on one device, also after its worker was replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from braid.core.errors import DeviceOutOfMemory, PreconditionFailed, RunStopped, Unavailable
from braid.core.program import PlanToRun, ProgramKey
from braid.core.tensor import TensorType
from braid.engine.link.messages import (
    ModelMemory,
    PrepareExecutable,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
)
from braid.engine.link.shared_memory import SlotLayout, slot_layout
from braid.engine.link.supervisor import WorkerLink
from braid.engine.link.watch import RunBound

log = logging.getLogger("braid.device")

WhenUnwanted = Callable[[Callable[[], object]], object]
"""Calls its argument once no request waits for a run any more."""

FACTOR = 20.0
LEAST_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Least and greatest limit of a run, in seconds, as the operator sets them.

    The limit of one run follows from the latency of its plan when that was prepared:

        limit = 20 times the plan's latency, at least ``floor_s``, at most ``cap_s``;
                never less than three times that latency

    The latency is that of the worker's own first runs, on inputs of its own, so that no caller can
    raise the limit. A caller's deadline ends a run earlier, if all callers of its batch have one.
    """

    floor_s: float = 20.0
    cap_s: float = 60.0

    def bound(self, latency_s: float) -> RunBound:
        """Return the bound of one run of a plan that took ``latency_s`` when it was prepared.

        A worker is not replaced before a run had ``LEAST_FACTOR`` times that latency, even if no
        request waits for the run any more: operators that cannot be stopped may take that long.
        """
        kill_after_s = LEAST_FACTOR * latency_s
        limit_s = min(max(self.floor_s, FACTOR * latency_s), self.cap_s)
        return RunBound(max(limit_s, kill_after_s), kill_after_s)


@dataclass(slots=True, eq=False)
class Executable:
    """A plan that is ready to run on the device."""

    number: int
    to_run: PlanToRun
    layout: SlotLayout = field(repr=False)
    bound: RunBound = field(default_factory=RunBound, repr=False)  # of one run
    needs_finite: bool = False  # whether its runs depend on inputs being finite
    heap_bytes: int = 0  # of its outputs, beside what the inputs' strings take; as much as was seen
    run_s: float = 0.0  # seconds of its first run
    size_bytes: int = 0  # that its release gives back, about
    work_s: float = 0.0  # seconds that it took to make

    @property
    def digest(self) -> str:
        return self.to_run.program.digest

    @property
    def plan_id(self) -> str:
        return self.to_run.plan_id

    @property
    def request(self) -> PrepareExecutable:
        return PrepareExecutable(self.number, self.to_run)


class Executables:
    """Executables of one device. Belongs to the event loop."""

    def __init__(self, link: WorkerLink, limits: RunLimits) -> None:
        self._link = link
        self._limits = limits
        self._by_number: dict[int, Executable] = {}
        self._without_room: set[int] = set()  # numbers of those that a new worker had no room for
        self._last_number = 0
        self.memory: dict[str, ModelMemory] = {}  # as of each model's latest executable, by digest
        self.gpu_reserved_bytes: int | None = None  # as of the latest executable

    async def prepare(self, to_run: PlanToRun, like: Executable | None = None) -> Executable:
        """Make a plan ready to run, as ``Device.prepare`` does."""
        self._last_number += 1
        number = self._last_number
        try:
            request = PrepareExecutable(number, to_run, runs_first=like is None)
            answer = await self._link.call(request)
        except asyncio.CancelledError:  # the worker makes it all the same
            with suppress(Unavailable):
                self._link.call(ReleaseExecutable(number)).add_done_callback(_ignore)
            raise
        layout = slot_layout(to_run.program.specs, answer.outputs)
        bound = self._limits.bound(answer.run_s) if like is None else like.bound
        ready = Executable(
            *(number, to_run, layout, bound, answer.needs_finite, answer.heap_bytes),
            *(answer.run_s, answer.size_bytes, answer.work_s),
        )
        self._by_number[number] = ready
        self._count(ready.digest, answer.memory)
        return ready

    def at_shapes(
        self, ready: Executable, program: ProgramKey, outputs: Mapping[str, TensorType]
    ) -> Executable:
        """As ``Device.at_shapes``. Attention takes time by the square of a length, so limits do."""
        layout = slot_layout(program.specs, outputs)
        growth = max(1.0, _input_bytes(layout) / max(1, _input_bytes(ready.layout)))
        run_s = min(ready.run_s * growth**2, self._limits.cap_s / LEAST_FACTOR)
        return replace(
            ready,
            to_run=replace(ready.to_run, program=program),
            layout=layout,
            bound=self._limits.bound(run_s),
            heap_bytes=int(ready.heap_bytes * growth),
        )

    def _count(self, digest: str, memory: ModelMemory) -> None:
        """Remember a model's memory, with the activations of its largest executable."""
        before = self.memory.get(digest, memory)
        most = max(before.activations, memory.activations)
        self.memory[digest] = structs.replace(memory, activations=most)
        self.gpu_reserved_bytes = memory.gpu_reserved

    async def release(self, ready: Executable) -> None:
        if self._by_number.pop(ready.number, None) is not None:
            with suppress(Unavailable):  # the next worker is not told of it
                await self._link.call(ReleaseExecutable(ready.number))

    def forget(self, digest: str) -> None:
        for number in [n for n, ready in self._by_number.items() if ready.digest == digest]:
            del self._by_number[number]
        self.memory.pop(digest, None)

    def run(
        self, ready: Executable, offset: int, when_unwanted: WhenUnwanted, *, is_finite: bool
    ) -> Awaitable[RunDone]:
        """Run one batch as ``Device.run`` does."""
        if ready.number in self._without_room:
            return self._prepare_and_run(ready, offset, when_unwanted, is_finite=is_finite)
        program = ready.to_run.program if ready.to_run.any_shape else None
        request = RunExecutable(ready.number, offset, is_finite, program)
        answer = self._link.run(request, ready.bound)
        when_unwanted(lambda: self._link.stop(answer))
        return answer

    async def _prepare_and_run(
        self, ready: Executable, offset: int, when_unwanted: WhenUnwanted, *, is_finite: bool
    ) -> RunDone:
        await self._link.call(self._by_number[ready.number].request)
        self._without_room.discard(ready.number)
        return await self.run(ready, offset, when_unwanted, is_finite=is_finite)

    async def replay(self) -> None:
        """Have a new worker prepare all executables, whose models it has loaded."""
        executables = dict(self._by_number)
        self._without_room.clear()
        for ready in executables.values():
            try:
                await self._link.startup_call(ready.request)
            except (DeviceOutOfMemory, RunStopped, PreconditionFailed) as error:
                if isinstance(error, PreconditionFailed) and not ready.to_run.any_shape:
                    raise
                # others may fit, and this one later
                facts = {"device": self._link.name, "reason": str(error)}
                log.error("a plan has no room", extra=facts)
                self._without_room.add(ready.number)
        for number in executables.keys() - self._by_number.keys():  # released meanwhile
            await self._link.startup_call(ReleaseExecutable(number))


def _input_bytes(layout: SlotLayout) -> int:
    return sum(place.size_bytes for place in layout.inputs.values())


def _ignore(answer: asyncio.Future[Any]) -> None:
    """Take the error of a call whose answer is of no interest."""
    if not answer.cancelled():
        answer.exception()
