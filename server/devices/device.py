"""One device as the server sees it: the models loaded there, and calls to its worker.

Device ──owns──> WorkerLink, Arena, the models and executables that a restarted worker has to have
   │  ▲ batcher: run, prepare     ▲ jobs: load
   └─owns─> bench, where jobs measure                                (braid.compiler.bench)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from braid.compiler.bench import MakeMeasuringHost, measuring_host
from braid.core.device_state import UNKNOWN
from braid.core.errors import (
    DamagedArtefact,
    DeviceOutOfMemory,
    InvalidArtefact,
    PreconditionFailed,
    RunStopped,
    Unavailable,
)
from braid.core.graph import OpGraph
from braid.core.program import PlanToRun, ProgramKey
from braid.core.shapes import ShapeMemory
from braid.core.tensor import TensorType
from braid.engine.link.messages import (
    DescribeDevice,
    DescribeProgram,
    DeviceDescription,
    LoadModel,
    ModelMemory,
    PrepareExecutable,
    ProgramRequest,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
)
from braid.engine.link.options import WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena, slot_layout
from braid.engine.link.supervisor import LinkEvents, LinkState, WorkerLink
from braid.engine.link.worker_process import OnProgress
from braid.server.devices.executables import (
    LEAST_FACTOR,
    Executable,
    RunLimits,
    WhenUnwanted,
    input_bytes,
)

log = logging.getLogger("braid.device")

R = TypeVar("R")

MakeLink = Callable[[str, WorkerOptions, Arena, LinkEvents], WorkerLink]


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Callbacks for what happens to devices."""

    changed: Callable[[Device], None] = lambda device: None
    """Receives a device whose worker came up, died, fell silent or answers again."""
    ended: Callable[[str, WorkerEnd], None] = lambda device, end: None
    """Receives the name of a device whose worker ended by itself, and how it ended."""
    damaged: Callable[[Device, str, DamagedArtefact], None] = lambda device, digest, error: None
    """Receives the digest of a model in use that a new worker could not load."""


@dataclass(slots=True)
class _Model:
    """A model on the device, by its digest there until it has no user."""

    users: int = 0  # replicas and jobs
    artefact: Path | None = None  # None: it is not loaded
    damage: DamagedArtefact | None = None  # why a new worker could not load it
    executables: dict[int, Executable] = field(default_factory=dict)  # by number
    memory: ModelMemory | None = None  # in the worker, as of the latest executable


class Device:
    """A device worker, and the models that its users need. Belongs to the event loop.

    Calls raise WorkerRestarting while the worker is not up, or if it dies; and DamagedArtefact if a
    new worker could not load the model.
    """

    def __init__(
        self,
        name: str,
        options: WorkerOptions,
        *,
        events: DeviceEvents | None = None,
        run_limits: RunLimits | None = None,
        make_link: MakeLink = WorkerLink,
        make_host: MakeMeasuringHost = measuring_host,
    ) -> None:
        """Start nothing yet; ``make_host`` decides where registrations measure."""
        self.name = name
        self.events = events or DeviceEvents()
        self.arena = Arena(options.arena_bytes)
        link_events = LinkEvents(
            on_start=self._replay,
            on_state=lambda _: self.events.changed(self),
            on_end=partial(self.events.ended, name),
        )
        self.link = make_link(name, options, self.arena, link_events)
        self.state = UNKNOWN
        """Distances between its cores when ``look`` was called last."""
        self.gpu_reserved_bytes: int | None = None
        """Bytes of the GPU that the worker had reserved after its latest executable."""
        self.shape_memory = ShapeMemory.part_of(options.memory_bytes)
        self.bench = make_host(self.link, self.arena, self._loaded)
        self._limits = run_limits or RunLimits()
        self._models: dict[str, _Model] = {}  # by digest
        self._without_room: set[int] = set()  # executables that a new worker had no room for
        self._last_number = 0

    @property
    def _description(self) -> DeviceDescription:
        assert self.link.device is not None, "the worker was not up yet"
        return self.link.device

    @property
    def device_key(self) -> str:
        """Key of everything that measurements on this device depend on; known after ``start``."""
        return self._description.device_key

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that models can be computed in; known after ``start``."""
        return self._description.precisions

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Other runtimes that can run whole models there; known after ``start``."""
        return self._description.runtimes

    @property
    def threads(self) -> int:
        """Most runs that can go on side by side; known after ``start``."""
        return self._description.threads

    @property
    def software(self) -> dict[str, str]:
        """Versions of the libraries in the worker, by name; known after ``start``."""
        return dict(self._description.software)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by what the process does: ``serving``, ``bench``."""
        pids = {"serving": self.link.pid, "bench": self.bench.pid}
        return {role: pid for role, pid in pids.items() if pid is not None}

    @property
    def model_memory(self) -> Mapping[str, ModelMemory]:
        """Memory in the worker of each model that has an executable, by digest.

        With the activations of its largest executable.
        """
        return {digest: at.memory for digest, at in self._models.items() if at.memory is not None}

    @property
    def is_up(self) -> bool:
        """True if the worker takes calls, or will once there is a model to load."""
        return self.link.state is LinkState.UP or self.link.is_asleep

    @property
    def answers(self) -> bool:
        """True if the worker takes calls and has reported its status lately."""
        return self.link.answers

    async def start(self) -> None:
        """Start the worker, which is replaced from now on whenever it ends."""
        await self.link.start()
        self.state = self._description.state

    async def sleep(self) -> None:
        """End a worker that has no model, until one is loaded; that of a GPU opens too slowly."""
        if not self._models and self.link.options.gpu is None:
            await self.link.sleep()

    async def close(self) -> None:
        await self.bench.close()
        await self.link.close()
        self.arena.close()

    async def _replay(self, link: WorkerLink) -> None:
        """Have a new worker load and prepare what its predecessor had; nothing is measured."""
        models = {digest: at for digest, at in self._models.items() if at.artefact is not None}
        for digest, at in models.items():
            try:
                await link.startup_call(LoadModel(digest, str(at.artefact)))
            except InvalidArtefact as error:  # other models go on
                if self._models.get(digest) is at:  # else its last user has left
                    self._lose(digest, DamagedArtefact(str(error)))
        self._without_room.clear()
        executables = [ready for at in self._models.values() for ready in at.executables.values()]
        for ready in sorted(executables, key=lambda ready: ready.number):
            await self._prepare_again(link, ready)
        for ready in executables:
            if ready.number not in self._executables_of(ready.digest):  # released meanwhile
                await link.startup_call(ReleaseExecutable(ready.number))
        for digest, at in models.items():
            if self._models.get(digest) is not at or at.artefact is None:
                await link.startup_call(UnloadModel(digest))

    async def _prepare_again(self, link: WorkerLink, ready: Executable) -> None:
        try:
            await link.startup_call(ready.request)
        except (DeviceOutOfMemory, RunStopped, PreconditionFailed) as error:
            if isinstance(error, PreconditionFailed) and not ready.to_run.any_shape:
                raise
            # others may fit, and this one later
            facts = {"device": self.name, "reason": str(error)}
            log.error("a plan has no room", extra=facts)
            self._without_room.add(ready.number)

    def _executables_of(self, digest: str) -> dict[int, Executable]:
        return self._models[digest].executables if digest in self._models else {}

    def _lose(self, digest: str, error: DamagedArtefact) -> None:
        """Record that a model could not be loaded again, though it has users."""
        log.error("a model is lost", extra={"device": self.name, "reason": str(error)})
        self.bench.unload(digest)
        self._models[digest] = _Model(self._models[digest].users, damage=error)
        self.events.damaged(self, digest, error)

    @asynccontextmanager
    async def keeping(self, digest: str) -> AsyncIterator[None]:
        """Count as a user of a model inside the block, so that no other user's end unloads it."""
        self.keep(digest)
        try:
            yield
        finally:
            await self.let_go(digest)

    def keep(self, digest: str) -> None:
        """Count one more user of a model, which need not be loaded yet."""
        self._models.setdefault(digest, _Model()).users += 1

    async def let_go(self, digest: str, executables: Collection[Executable] = ()) -> None:
        """Count one user less, release its executables; the last user's end unloads the model."""
        self._models[digest].users -= 1
        assert self._models[digest].users >= 0, digest
        if self._models[digest].users:
            for ready in executables:
                await self.release(ready)
            return
        del self._models[digest]
        self.bench.unload(digest)
        with suppress(Unavailable):  # the next worker is not told of it
            await self.link.call(UnloadModel(digest))

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact's template and weights, unless they are loaded, for one more user.

        Raises DamagedArtefact: a file of it is missing or changed.
        """
        assert digest in self._models, f"no user keeps {digest}"
        if self._models[digest].artefact is not None:
            return
        await self.link.wake()
        try:
            await self.link.call(LoadModel(digest, str(artefact)))
        except InvalidArtefact as error:
            raise DamagedArtefact(str(error)) from error
        self._models[digest].artefact, self._models[digest].damage = artefact, None

    def _loaded(self, digest: str) -> Path:
        self._check_sound(digest)
        artefact = self._models[digest].artefact
        assert artefact is not None, f"{digest} is not loaded"
        return artefact

    def _check_sound(self, digest: str) -> None:
        damage = self._models[digest].damage if digest in self._models else None
        if damage is not None:
            raise damage

    async def prepare(self, to_run: PlanToRun, like: Executable | None = None) -> Executable:
        """Make a plan ready to run, and run it once; InvalidRequest: it cannot run at these shapes.

        With ``like``, which computes the same, the first run is a request's, and bounded as that.
        """
        self._last_number += 1
        number = self._last_number
        try:
            request = PrepareExecutable(number, to_run, runs_first=like is None)
            answer = await self.link.call(request)
        except asyncio.CancelledError:  # the worker makes it all the same
            with suppress(Unavailable):
                released = self.link.call(ReleaseExecutable(number))
                released.add_done_callback(lambda end: end.cancelled() or end.exception())  # seen
            raise
        layout = slot_layout(to_run.program.specs, answer.outputs)
        bound = self._limits.bound(answer.run_s) if like is None else like.bound
        ready = Executable(
            *(number, to_run, layout, bound, answer.needs_finite, answer.heap_bytes),
            *(answer.run_s, answer.size_bytes, answer.work_s),
        )
        if (at := self._models.get(ready.digest)) is not None:  # else its last user has left
            at.executables[number] = ready
            before = at.memory or answer.memory
            most = max(before.activations, answer.memory.activations)
            at.memory = structs.replace(answer.memory, activations=most)
        self.gpu_reserved_bytes = answer.memory.gpu_reserved
        return ready

    def at_shapes(
        self, ready: Executable, program: ProgramKey, outputs: Mapping[str, TensorType]
    ) -> Executable:
        """Return an executable for any shape at those of ``program``; the worker is not asked.

        Attention takes time by the square of a length, so limits do.
        """
        layout = slot_layout(program.specs, outputs)
        growth = max(1.0, input_bytes(layout) / max(1, input_bytes(ready.layout)))
        run_s = min(ready.run_s * growth**2, self._limits.cap_s / LEAST_FACTOR)
        return replace(
            ready,
            to_run=replace(ready.to_run, program=program),
            layout=layout,
            bound=self._limits.bound(run_s),
            heap_bytes=int(ready.heap_bytes * growth),
        )

    async def release(self, ready: Executable) -> None:
        if self._executables_of(ready.digest).pop(ready.number, None) is not None:
            with suppress(Unavailable):  # the next worker is not told of it
                await self.link.call(ReleaseExecutable(ready.number))

    def run(
        self,
        ready: Executable,
        offset: int,
        when_unwanted: WhenUnwanted = lambda _: None,
        *,
        is_finite: bool = False,
    ) -> Awaitable[RunDone]:
        """Run one batch whose inputs lie in the slot at ``offset``.

        The worker is told before this returns, unless it has to prepare the plan first. The run is
        ended when ``when_unwanted`` says so, or when it takes far too long. With ``is_finite``, no
        input is NaN or infinite; without it the worker looks itself where that matters.

        Raises DeviceOutOfMemory, RunStopped (unwanted) or RunTooLong (perhaps with the worker).
        """
        self._check_sound(ready.to_run.program.digest)
        if ready.number in self._without_room:
            return self._prepare_and_run(ready, offset, when_unwanted, is_finite=is_finite)
        program = ready.to_run.program if ready.to_run.any_shape else None
        request = RunExecutable(ready.number, offset, is_finite, program)
        answer = self.link.run(request, ready.bound)
        when_unwanted(lambda: self.link.stop(answer))
        return answer

    async def _prepare_and_run(
        self, ready: Executable, offset: int, when_unwanted: WhenUnwanted, *, is_finite: bool
    ) -> RunDone:
        await self.link.call(self._executables_of(ready.digest)[ready.number].request)
        self._without_room.discard(ready.number)
        return await self.run(ready, offset, when_unwanted, is_finite=is_finite)

    async def describe(self, program: ProgramKey) -> OpGraph:
        """Static graph of a program, whose operators are the schedule units; or InvalidRequest."""
        self._loaded(program.digest)
        return (await self.link.call(DescribeProgram(program))).graph

    async def look(self) -> None:
        """Measure the distances between its cores, of which ``state`` tells from then on.

        On a GPU, and while no worker is up, nothing is measured.
        """
        if self.link.options.gpu is None and self.link.state is LinkState.UP:
            with suppress(Unavailable):
                self.state = (await self.link.call(DescribeDevice())).state

    async def ask(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Ask the bench about a program of a loaded model, for a compilation."""
        self._loaded(request.program.digest)
        return await self.bench.call(request, on_progress)
