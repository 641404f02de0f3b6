"""One device as the server sees it: the models loaded there, and calls to its worker.

Device ──owns──> WorkerLink, Arena, the models that a restarted worker has to load again
   │  ▲ batcher: run, prepare     ▲ jobs: load
   ├─owns─> Executables: plans that are ready to run                           (executables.py)
   └─owns─> bench, where jobs measure                                (braid.compiler.bench)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from braid.compiler.bench import MakeMeasuringHost, measuring_host
from braid.core.device_state import UNKNOWN
from braid.core.errors import DamagedArtefact, InvalidArtefact, Unavailable
from braid.core.graph import OpGraph
from braid.core.program import PlanToRun, ProgramKey
from braid.core.shape_memory import ShapeMemory
from braid.core.tensor import TensorType
from braid.engine.link.messages import (
    DescribeDevice,
    DescribeProgram,
    DeviceDescription,
    LoadModel,
    ModelMemory,
    ProgramRequest,
    RunDone,
    UnloadModel,
)
from braid.engine.link.options import WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import LinkEvents, LinkState, WorkerLink
from braid.engine.link.worker_process import OnProgress
from braid.server.devices.executables import Executable, Executables, RunLimits, WhenUnwanted

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
        self._executables = Executables(self.link, run_limits or RunLimits())
        self.shape_memory = ShapeMemory.part_of(options.memory_bytes)
        self._models: dict[str, Path] = {}  # artefacts by digest
        self._users: Counter[str] = Counter()  # replicas and jobs, by digest of their model
        self.bench = make_host(self.link, self.arena, self._loaded)
        self._damaged: dict[str, DamagedArtefact] = {}  # what a fresh worker could not load

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
        """Memory in the worker of each model that has an executable, by digest."""
        return self._executables.memory

    @property
    def gpu_reserved_bytes(self) -> int | None:
        """Bytes of the GPU that the worker had reserved after its latest executable."""
        return self._executables.gpu_reserved_bytes

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
        if not self._users and self.link.options.gpu is None:
            await self.link.sleep()

    async def close(self) -> None:
        """End the worker and the measuring process."""
        await self.bench.close()
        await self.link.close()
        self.arena.close()

    async def _replay(self, link: WorkerLink) -> None:
        """Have a new worker load and prepare what its predecessor had; nothing is measured."""
        models = dict(self._models)
        for digest, artefact in models.items():
            try:
                await link.startup_call(LoadModel(digest, str(artefact)))
            except InvalidArtefact as error:  # other models go on
                self._lose(digest, DamagedArtefact(str(error)))
        await self._executables.replay()
        for digest in models.keys() - self._models.keys():
            await link.startup_call(UnloadModel(digest))

    def _lose(self, digest: str, error: DamagedArtefact) -> None:
        """Record that a model could not be loaded again, though it has users."""
        log.error("a model is lost", extra={"device": self.name, "reason": str(error)})
        self._forget(digest)
        self._damaged[digest] = error
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
        self._users[digest] += 1

    async def let_go(self, digest: str, executables: Collection[Executable] = ()) -> None:
        """Count one user less, release its executables; the last user's end unloads the model."""
        self._users[digest] -= 1
        assert self._users[digest] >= 0, digest
        if self._users[digest]:
            for ready in executables:
                await self.release(ready)
        else:
            del self._users[digest]
            await self._unload(digest)

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact's template and weights, unless they are loaded, for one more user.

        Raises DamagedArtefact: a file of it is missing or changed.
        """
        assert self._users[digest], f"no user keeps {digest}"
        if digest in self._models:
            return
        await self.link.wake()
        try:
            await self.link.call(LoadModel(digest, str(artefact)))
        except InvalidArtefact as error:
            raise DamagedArtefact(str(error)) from error
        self._models[digest] = artefact
        self._damaged.pop(digest, None)

    def _loaded(self, digest: str) -> Path:
        if digest in self._damaged:
            raise self._damaged[digest]
        return self._models[digest]

    def _forget(self, digest: str) -> None:
        """Forget a model and its executables; the worker is not told."""
        self._models.pop(digest, None)
        self._damaged.pop(digest, None)
        self._executables.forget(digest)
        self.bench.unload(digest)

    async def _unload(self, digest: str) -> None:
        self._forget(digest)
        with suppress(Unavailable):  # the next worker is not told of it
            await self.link.call(UnloadModel(digest))

    async def prepare(self, to_run: PlanToRun, like: Executable | None = None) -> Executable:
        """Make a plan ready to run, and run it once; InvalidRequest: it cannot run at these shapes.

        With ``like``, which computes the same, the first run is a request's, and bounded as that.
        """
        return await self._executables.prepare(to_run, like)

    def at_shapes(
        self, ready: Executable, program: ProgramKey, outputs: Mapping[str, TensorType]
    ) -> Executable:
        """Return an executable for any shape at those of ``program``; the worker is not asked."""
        return self._executables.at_shapes(ready, program, outputs)

    async def release(self, ready: Executable) -> None:
        """Forget an executable that no batch uses any more."""
        await self._executables.release(ready)

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
        if self._damaged and ready.digest in self._damaged:
            raise self._damaged[ready.digest]
        return self._executables.run(ready, offset, when_unwanted, is_finite=is_finite)

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
