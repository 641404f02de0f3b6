"""One device as the server sees it: what is loaded and prepared there, and calls to its worker.

Device ──owns──> WorkerLink, Arena, what a restarted worker must be told again
   ▲ batcher: run          ▲ jobs: load, static_graph, facts, measure_stage, contest
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from core.errors import DeviceOutOfMemory
from core.graph import OpGraph, graph_from_json
from core.plan import StreamPlan, plan_to_json
from core.precision import FP32
from core.schedule import NO_CHOICES, SEQUENTIAL, Stage
from core.tensor import TensorSpec, spec_from_json
from engine.importer.report import read_graph, read_report
from engine.worker.arena import Arena
from engine.worker.layout import SlotLayout, slot_layout
from engine.worker.link import LinkState, WorkerLink
from engine.worker.options import WorkerOptions
from scheduler.cost import Overheads
from server.jobs.ports import GraphFacts, Showing, StageTiming, UnitKernels
from server.static_values import StaticBytes, StaticValues, static_bytes, static_message

log = logging.getLogger("braid.device")

Specs = Mapping[str, TensorSpec]

OnRan = Callable[[str, int], None]
"""Told the plan of each batch that ran, and its time on the device in microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A model bound to input shapes and a plan, ready on the device."""

    number: int
    digest: str
    inputs: Specs
    static: StaticValues
    plan: StreamPlan | None  # None: sequential
    plan_id: str
    layout: SlotLayout = field(repr=False)
    in_onnxruntime: bool = False  # the plan runs only if that cannot
    precision: str = FP32
    choices: Mapping[str, str] = field(default_factory=dict)  # kernel signature -> variant


@dataclass(slots=True)
class _Model:
    """A loaded model, as far as the front end must know it."""

    artefact: Path
    static: StaticBytes  # what its static inputs held when it was imported
    profiled: dict[int, dict[str, Any]] = field(default_factory=dict)  # batch size -> call fields


class Device:
    """A device worker and everything it was told."""

    def __init__(self, name: str, options: WorkerOptions) -> None:
        self.name = name
        self.arena = Arena(options.arena_bytes)
        self.link = WorkerLink(name, options, self.arena)
        self.link.on_start = self._replay
        self.on_ran: OnRan = lambda plan_id, compute_us: None
        self._models: dict[str, _Model] = {}
        self._executables: dict[int, Executable] = {}
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

    async def start(self) -> None:
        """Start the worker; it is restarted from now on."""
        await self.link.start()

    async def close(self) -> None:
        """End the worker."""
        await self.link.close()
        self.arena.close()

    async def _replay(self, link: WorkerLink) -> None:
        """Tell a fresh worker what the last one knew; nothing is measured again."""
        for digest, model in list(self._models.items()):
            await link.startup_call("load", digest=digest, path=str(model.artefact))
        self._without_room.clear()
        for ready in list(self._executables.values()):
            try:
                await link.startup_call("prepare", **_prepare_fields(ready))
            except DeviceOutOfMemory as error:  # others may fit, and this one later
                log.error("a plan has no room", extra={"device": self.name, "reason": str(error)})
                self._without_room.add(ready.number)

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact's template and weights; does nothing if they are loaded."""
        if digest in self._models:
            return
        graph = await asyncio.to_thread(read_graph, artefact)
        report = await asyncio.to_thread(read_report, artefact)
        await self.link.call("load", digest=digest, path=str(artefact))
        self._models[digest] = _Model(artefact, static_bytes(report.static_values, graph.inputs))

    async def unload(self, digest: str) -> None:
        """Forget a model and all its executables."""
        self._models.pop(digest, None)
        for number in [n for n, ready in self._executables.items() if ready.digest == digest]:
            del self._executables[number]
        if self.is_up:
            await self.link.call("unload", digest=digest)

    async def prepare(
        self,
        digest: str,
        inputs: Specs,
        static: StaticValues,
        plan: StreamPlan | None = None,
        plan_id: str = SEQUENTIAL,
        in_onnxruntime: bool = False,
        precision: str = FP32,
        choices: Mapping[str, str] = NO_CHOICES,
    ) -> Executable:
        """Make an executable for static input shapes.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
            WorkerRestarting: the worker is not up.
        """
        self._next_number += 1
        asked = Executable(
            self._next_number,
            digest,
            inputs,
            static,
            plan,
            plan_id,
            _EMPTY,
            in_onnxruntime,
            precision,
            choices,
        )
        answer = await self.link.call("prepare", **_prepare_fields(asked))
        outputs = {name: spec_from_json(spec) for name, spec in answer["outputs"].items()}
        ready = replace(asked, layout=slot_layout(inputs, outputs))
        self._executables[ready.number] = ready
        return ready

    async def release(self, ready: Executable) -> None:
        """Forget an executable that no batch uses any more."""
        if self._executables.pop(ready.number, None) is not None and self.is_up:
            await self.link.call("release", number=ready.number)

    async def run(self, ready: Executable, offset: int) -> int:
        """Run one batch whose inputs lie in the slot at ``offset``; returns microseconds.

        Raises:
            DeviceOutOfMemory: there is no room for it.
            WorkerRestarting: the worker is not up, or died.
        """
        if ready.number in self._without_room:
            await self.link.call("prepare", **_prepare_fields(ready))
            self._without_room.discard(ready.number)
        answer = await self.link.call("infer", number=ready.number, offset=offset)
        compute_us = int(answer["compute_us"])
        self.on_ran(ready.plan_id, compute_us)
        return compute_us

    # -- for jobs -----------------------------------------------------------------------------

    async def static_graph(
        self, digest: str, batch_size: int, inputs: Specs, precision: str = FP32
    ) -> OpGraph:
        """As ``describe``; ``measure_stage`` and ``contest`` mean this graph from now on."""
        graph = await self.describe(digest, inputs, precision)
        model = self._models[digest]
        model.profiled[batch_size] = _describe_fields(digest, model, inputs, precision)
        return graph

    async def describe(self, digest: str, inputs: Specs, precision: str = FP32) -> OpGraph:
        """The schedule units of a loaded model for static ``inputs``, the batch included.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
        """
        fields = _describe_fields(digest, self._models[digest], inputs, precision)
        answer = await self.link.call("describe", **fields)
        return graph_from_json(answer["graph"])

    async def facts(self, digest: str, batch_size: int) -> GraphFacts:
        """What the device knows of the graph that ``static_graph`` gave, besides latencies."""
        answer = await self.link.call("facts", **self._models[digest].profiled[batch_size])
        return GraphFacts(
            threads=answer["threads"],
            overheads=Overheads(answer["stage_us"], answer["group_us"], answer["launch_us"]),
            moved_bytes=tuple(answer["moved_bytes"]),
            memory_bound=tuple(answer["memory_bound"]),
            merge_groups=tuple(map(tuple, answer["merge_groups"])),
        )

    async def kernels(self, digest: str, batch_size: int) -> list[UnitKernels]:
        """Units of the graph that ``static_graph`` gave that more than one kernel can run."""
        answer = await self.link.call("kernels", **self._models[digest].profiled[batch_size])
        return [
            UnitKernels(each["signature"], tuple(each["units"]), tuple(each["variants"]))
            for each in answer["kernels"]
        ]

    def choose_kernels(self, digest: str, batch_size: int, choices: Mapping[str, str]) -> None:
        """Let that graph run on other kernels than usual from now on."""
        self._models[digest].profiled[batch_size]["choices"] = dict(choices)

    async def measure_kernel(
        self, digest: str, batch_size: int, unit: int, variant: str, hopeless_us: float
    ) -> StageTiming:
        """Latency of one unit of that graph on a kernel; roughly if above ``hopeless_us``."""
        answer = await self.link.call(
            "measure",
            groups=[[unit]],
            variant=variant,
            hopeless_us=None if hopeless_us == inf else hopeless_us,
            **self._models[digest].profiled[batch_size],
        )
        return StageTiming(answer["latency_us"], answer["spread"], answer["repeats"])

    async def measure_stage(
        self, digest: str, batch_size: int, stage: Stage, threads: int | None = None
    ) -> StageTiming:
        """Latency of one stage of the graph that ``static_graph`` gave, inference going first.

        ``threads`` is how many the stage may use; None: all.
        """
        answer = await self.link.call(
            "measure",
            groups=[list(group) for group in stage.groups],
            strategy=stage.strategy,
            threads=threads,
            **self._models[digest].profiled[batch_size],
        )
        return StageTiming(answer["latency_us"], answer["spread"], answer["repeats"])

    async def contest(
        self,
        digest: str,
        batch_size: int,
        plans: Sequence[StreamPlan],
        *,
        onnxruntime: bool,
        tolerance: float,
        on_progress: Callable[[float], None],
    ) -> list[Showing]:
        """Whole models against each other, in turns in one run; the first plan is the baseline."""
        answer = await self.link.call(
            "contest",
            on_progress,
            plans=[plan_to_json(plan) for plan in plans],
            onnxruntime=onnxruntime,
            tolerance=tolerance,
            **self._models[digest].profiled[batch_size],
        )
        return [
            Showing(**{**contender, "turns_us": tuple(contender["turns_us"])})
            for contender in answer["contenders"]
        ]


_EMPTY = slot_layout({}, {})


def _describe_fields(digest: str, model: _Model, inputs: Specs, precision: str) -> dict[str, Any]:
    return {
        "precision": precision,
        "digest": digest,
        "inputs": {name: spec.to_json() for name, spec in inputs.items()},
        "static": static_message(model.static, inputs),
    }


def _prepare_fields(ready: Executable) -> dict[str, Any]:
    return {
        "number": ready.number,
        "digest": ready.digest,
        "inputs": {name: spec.to_json() for name, spec in ready.inputs.items()},
        "static": ready.static,
        "plan": None if ready.plan is None else plan_to_json(ready.plan),
        "onnxruntime": ready.in_onnxruntime,
        "precision": ready.precision,
        "choices": dict(ready.choices),
    }
