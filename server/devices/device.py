"""One device as the server sees it: what is loaded and prepared there, and calls to its worker.

Device ──owns──> WorkerLink, Arena, what a restarted worker must be told again
   │  ▲ batcher: run, prepare     ▲ jobs: load
   └─owns─> Bench <── jobs: static_graph, facts, measure_stage, contest     (measuring/bench.py)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from braid.core.errors import (
    DamagedArtefact,
    DeviceOutOfMemory,
    InvalidArtefact,
    RunStopped,
    Unavailable,
)
from braid.core.graph import OpGraph, graph_from_json
from braid.core.json_form import to_json
from braid.core.plan import plan_to_json
from braid.core.program import PlanToRun, ProgramKey
from braid.core.tensor import TensorSpec, spec_from_json
from braid.engine.link.options import WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.slot_layout import SlotLayout, slot_layout
from braid.engine.link.supervisor import LinkState, WorkerLink
from braid.engine.link.watch import RunBound
from braid.server.devices.measuring.bench import Bench
from braid.server.devices.measuring.host import MakeMeasuringHost
from braid.server.devices.measuring.serving import measuring_host
from braid.server.devices.run_limits import RunLimits

log = logging.getLogger("braid.device")

Specs = Mapping[str, TensorSpec]

OnDamaged = Callable[["Device", str, DamagedArtefact], None]
"""Told the digest of a model that a fresh worker could not load."""

WhenUnwanted = Callable[[Callable[[], object]], object]
"""Calls what it is given once nobody waits for a run any more."""

OnRan = Callable[[str, int], None]
"""Told the plan of each batch that ran, and its time on the device in microseconds."""


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Calls that tell what happens on devices."""

    changed: Callable[[Device], None] = lambda device: None
    """Told a device whose worker came up or died."""
    ended: Callable[[str, WorkerEnd], None] = lambda device, end: None
    """Told the name of a device whose worker ended, and why."""
    ran: OnRan = lambda plan_id, compute_us: None
    damaged: OnDamaged = lambda device, digest, error: None


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A plan that is ready to run on the device."""

    number: int
    to_run: PlanToRun
    layout: SlotLayout = field(repr=False)
    bound: RunBound = field(default_factory=RunBound, repr=False)  # of one run

    @property
    def digest(self) -> str:
        """Digest of its model."""
        return self.to_run.program.digest

    @property
    def plan_id(self) -> str:
        """Name of its plan, as Infer answers."""
        return self.to_run.plan_id


class Device:
    """A device worker and everything it was told."""

    def __init__(
        self,
        name: str,
        options: WorkerOptions,
        *,
        make_host: MakeMeasuringHost = measuring_host,
        run_limits: RunLimits | None = None,
        events: DeviceEvents | None = None,
    ) -> None:
        """Start nothing yet; ``make_host`` decides where registrations measure."""
        self.name = name
        self._events = events or DeviceEvents()
        self._run_limits = run_limits or RunLimits()
        self.arena = Arena(options.arena_bytes)
        self.link = WorkerLink(name, options, self.arena)
        self.link.on_start = self._replay
        self.link.on_state = lambda state: self._events.changed(self)
        self.link.on_end = lambda end: self._events.ended(name, end)
        self._models: dict[str, Path] = {}  # artefacts by digest
        self._users: Counter[str] = Counter()  # replicas and jobs, by digest of their model
        self.bench = Bench(make_host(self.link, self.arena, self._loaded), self._loaded)
        self._executables: dict[int, Executable] = {}
        self._damaged: dict[str, DamagedArtefact] = {}  # what a fresh worker could not load
        self._without_room: set[int] = set()  # executables that found none after a restart
        self._next_number = 0

    @property
    def device_key(self) -> str:
        """What a measurement on this device depends on; known once the worker was up."""
        return str(self.link.facts["device_key"])

    @property
    def precisions(self) -> tuple[str, ...]:
        """What models can be computed in there."""
        return tuple(self.link.facts["precisions"])

    @property
    def software(self) -> dict[str, str]:
        """Versions of what runs there."""
        return dict(self.link.facts["software"])

    @property
    def is_up(self) -> bool:
        """Whether calls are taken now."""
        return self.link.state is LinkState.UP

    @property
    def answers(self) -> bool:
        """Whether calls are taken now, and the worker was heard of lately."""
        return self.link.answers

    async def start(self) -> None:
        """Start the worker; it is restarted from now on."""
        await self.link.start()

    async def close(self) -> None:
        """End its workers."""
        await self.bench.close()
        await self.link.close()
        self.arena.close()

    async def _replay(self, link: WorkerLink) -> None:
        """Tell a fresh worker what the last one knew; nothing is measured again."""
        models, executables = dict(self._models), dict(self._executables)
        for digest, artefact in models.items():
            try:
                await link.startup_call("load", digest=digest, path=str(artefact))
            except InvalidArtefact as error:  # the others go on
                executables = {n: e for n, e in executables.items() if e.digest != digest}
                self._lose(digest, DamagedArtefact(str(error)))
        self._without_room.clear()
        for ready in executables.values():
            try:
                await link.startup_call("prepare", **_prepare_fields(ready))
            except (DeviceOutOfMemory, RunStopped) as error:  # others may fit, and this one later
                log.error("a plan has no room", extra={"device": self.name, "reason": str(error)})
                self._without_room.add(ready.number)
        for number in executables.keys() - self._executables.keys():  # gone meanwhile
            await link.startup_call("release", number=number)
        for digest in models.keys() - self._models.keys():
            await link.startup_call("unload", digest=digest)

    def _lose(self, digest: str, error: DamagedArtefact) -> None:
        """A model is not loaded any more, though it has users."""
        log.error("a model is lost", extra={"device": self.name, "reason": str(error)})
        self._forget(digest)
        self._damaged[digest] = error
        self._events.damaged(self, digest, error)

    @asynccontextmanager
    async def keeping(self, digest: str) -> AsyncIterator[None]:
        """Surround whatever needs a model loaded: meanwhile nobody else's end unloads it."""
        self.keep(digest)
        try:
            yield
        finally:
            await self.let_go(digest)

    def keep(self, digest: str) -> None:
        """Count one more user of a model, which need not be loaded yet."""
        self._users[digest] += 1

    async def let_go(self, digest: str, executables: Collection[Executable] = ()) -> None:
        """Count one user less, and release its executables; the last one's model is unloaded."""
        self._users[digest] -= 1
        assert self._users[digest] >= 0, digest
        if self._users[digest]:
            for ready in executables:
                await self.release(ready)
        else:
            del self._users[digest]
            await self._unload(digest)

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact's template and weights for a user that is counted.

        Does nothing if they are loaded.

        Raises:
            DamagedArtefact: a file of it is missing or changed.
            WorkerRestarting: the worker is not up.
        """
        assert self._users[digest], f"nobody keeps {digest}"
        if digest in self._models:
            return
        try:
            await self.link.call("load", digest=digest, path=str(artefact))
        except InvalidArtefact as error:
            raise DamagedArtefact(str(error)) from error
        self._models[digest] = artefact
        self._damaged.pop(digest, None)

    def _loaded(self, digest: str) -> Path:
        """Artefact of a model that is loaded; raises DamagedArtefact if it was lost since."""
        if digest in self._damaged:
            raise self._damaged[digest]
        return self._models[digest]

    def _forget(self, digest: str) -> None:
        """Tell the next worker nothing of a model and its executables."""
        self._models.pop(digest, None)
        self._damaged.pop(digest, None)
        for number in [n for n, ready in self._executables.items() if ready.digest == digest]:
            del self._executables[number]
        self.bench.unload(digest)

    async def _unload(self, digest: str) -> None:
        """Forget a model and all its executables."""
        self._forget(digest)
        if self.is_up:
            with suppress(Unavailable):  # the next worker is not told of it
                await self.link.call("unload", digest=digest)

    async def prepare(self, to_run: PlanToRun) -> Executable:
        """Make a plan ready to run.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
            WorkerRestarting: the worker is not up.
        """
        self._next_number += 1
        asked = Executable(self._next_number, to_run, _EMPTY)
        try:
            answer = await self.link.call("prepare", **_prepare_fields(asked))
        except asyncio.CancelledError:  # the worker makes it all the same
            if self.is_up:
                self.link.call("release", number=asked.number).add_done_callback(_ignore)
            raise
        outputs = {name: spec_from_json(spec) for name, spec in answer["outputs"].items()}
        bound = self._run_limits.bound(answer.get("run_s", 0.0))
        ready = replace(asked, layout=slot_layout(to_run.program.specs, outputs), bound=bound)
        self._executables[ready.number] = ready
        return ready

    async def release(self, ready: Executable) -> None:
        """Forget an executable that no batch uses any more."""
        if self._executables.pop(ready.number, None) is not None and self.is_up:
            with suppress(Unavailable):  # the next worker is not told of it
                await self.link.call("release", number=ready.number)

    async def run(
        self, ready: Executable, offset: int, when_unwanted: WhenUnwanted = lambda _: None
    ) -> int:
        """Run one batch whose inputs lie in the slot at ``offset``; returns microseconds.

        The run is ended when ``when_unwanted`` says so, or when it takes far too long.

        Raises:
            DeviceOutOfMemory: there is no room for it.
            DamagedArtefact: the worker was replaced, and the new one could not load the model.
            WorkerRestarting: the worker is not up, or died.
            RunStopped: the run was ended since it was unwanted.
            RunTooLong: the run was ended, perhaps with the worker, since it took too long.
        """
        if ready.digest in self._damaged:
            raise self._damaged[ready.digest]
        if ready.number in self._without_room:
            await self.link.call("prepare", **_prepare_fields(ready))
            self._without_room.discard(ready.number)
        answered = self.link.infer(ready.number, offset, ready.bound)
        when_unwanted(lambda: self.link.stop(answered))
        answer = await answered
        compute_us = int(answer["compute_us"])
        self._events.ran(ready.plan_id, compute_us)
        return compute_us

    async def describe(self, program: ProgramKey) -> OpGraph:
        """The schedule units of a loaded model for static ``inputs``, the batch included.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
            DamagedArtefact: the worker was replaced, and the new one could not load the model.
        """
        self._loaded(program.digest)
        answer = await self.link.call("describe", program=to_json(program))
        return graph_from_json(answer["graph"])


def _ignore(answer: asyncio.Future[Any]) -> None:
    """Let a call end unheard, whatever it brings."""
    if not answer.cancelled():
        answer.exception()


_EMPTY = slot_layout({}, {})


def _prepare_fields(ready: Executable) -> dict[str, Any]:
    to_run = ready.to_run
    return {
        "number": ready.number,
        "program": to_json(to_run.program),
        "plan": None if to_run.plan is None else plan_to_json(to_run.plan),
        "onnxruntime": to_run.in_onnxruntime,
    }
