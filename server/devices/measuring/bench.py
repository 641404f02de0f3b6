"""What registration jobs ask of a device: its static graphs, and how long parts of them take.

jobs ──> Bench ──> MeasuringHost, a worker that measures     (server/devices/measuring/host.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from braid.core.graph import OpGraph, graph_from_json
from braid.core.measurement import is_latency
from braid.core.plan import StreamPlan, plan_to_json
from braid.core.precision import FP32
from braid.core.schedule import Stage
from braid.engine.link.worker_process import OnProgress
from braid.scheduler.cost import Overheads
from braid.server.devices.measuring.host import MeasuringHost
from braid.server.devices.static_values import StaticBytes, static_message
from braid.server.jobs.interfaces import GraphFacts, Showing, Specs, StageTiming, UnitKernels

ATTEMPTS = 3
"""To measure a stage, as long as the answer is a latency that cannot be."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on a device, as far as the front end must know it."""

    artefact: Path
    static: StaticBytes  # what its static inputs held when it was imported


def describe_fields(
    digest: str, model: LoadedModel, inputs: Specs, precision: str
) -> dict[str, Any]:
    """What a worker is told of the static graph that a call is about."""
    return {
        "precision": precision,
        "digest": digest,
        "inputs": {name: spec.to_json() for name, spec in inputs.items()},
        "static": static_message(model.static, inputs),
    }


class Bench:
    """What jobs ask of one device's static graphs. A cancelled call stops measuring.

    Any call raises WorkerRestarting if there is no worker to measure in, or it died, and
    DamagedArtefact if the device lost the model.
    """

    def __init__(self, host: MeasuringHost, loaded: Callable[[str], LoadedModel]) -> None:
        """``loaded`` finds a model by its digest, or raises DamagedArtefact."""
        self.host = host
        self._loaded = loaded
        self._graphs: dict[tuple[str, int], dict[str, Any]] = {}  # digest, batch size -> fields

    @property
    def is_measuring(self) -> bool:
        """Whether something is measured beside the worker that serves."""
        return self.host.is_measuring

    def wake(self) -> None:
        """Calls will come soon."""
        self.host.wake()

    async def static_graph(
        self, digest: str, batch_size: int, inputs: Specs, precision: str = FP32
    ) -> OpGraph:
        """The schedule units at these inputs; the calls below mean these from now on.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
        """
        fields = describe_fields(digest, self._loaded(digest), inputs, precision)
        answer = await self._call("describe", fields)
        self._graphs[digest, batch_size] = fields
        return graph_from_json(answer["graph"])

    async def facts(self, digest: str, batch_size: int) -> GraphFacts:
        """What the device knows of the graph besides latencies."""
        answer = await self._call("facts", self._graph(digest, batch_size))
        return GraphFacts(
            threads=answer["threads"],
            overheads=Overheads(answer["stage_us"], answer["group_us"], answer["launch_us"]),
            moved_bytes=tuple(answer["moved_bytes"]),
            memory_bound=tuple(answer["memory_bound"]),
            merge_groups=tuple(map(tuple, answer["merge_groups"])),
        )

    async def kernels(self, digest: str, batch_size: int) -> list[UnitKernels]:
        """Units of the graph that more than one kernel can run."""
        answer = await self._call("kernels", self._graph(digest, batch_size))
        return [
            UnitKernels(each["signature"], tuple(each["units"]), tuple(each["variants"]))
            for each in answer["kernels"]
        ]

    def choose_kernels(self, digest: str, batch_size: int, choices: Mapping[str, str]) -> None:
        """Let the graph run on other kernels than usual from now on."""
        self._graph(digest, batch_size)["choices"] = dict(choices)

    async def measure_kernel(
        self, digest: str, batch_size: int, unit: int, variant: str, hopeless_us: float
    ) -> StageTiming:
        """Latency of one unit of the graph on a kernel; roughly if above ``hopeless_us``."""
        return await self._measure(
            self._graph(digest, batch_size),
            groups=[[unit]],
            variant=variant,
            hopeless_us=None if hopeless_us == inf else hopeless_us,
        )

    async def measure_stage(
        self, digest: str, batch_size: int, stage: Stage, threads: int | None = None
    ) -> StageTiming:
        """Latency of one stage of the graph, inference going first.

        ``threads`` is how many the stage may use; None: all.
        """
        return await self._measure(
            self._graph(digest, batch_size),
            groups=[list(group) for group in stage.groups],
            strategy=stage.strategy,
            threads=threads,
        )

    async def compare(
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
        answer = await self._call(
            "compare",
            self._graph(digest, batch_size),
            on_progress,
            plans=[plan_to_json(plan) for plan in plans],
            onnxruntime=onnxruntime,
            tolerance=tolerance,
        )
        return [
            Showing(
                **{**each, "ratios": tuple(each["ratios"]), "turns_us": tuple(each["turns_us"])}
            )
            for each in answer["contenders"]
        ]

    def _graph(self, digest: str, batch_size: int) -> dict[str, Any]:
        """What calls are told that mean a static graph described before."""
        self._loaded(digest)
        return self._graphs[digest, batch_size]

    def unload(self, digest: str) -> None:
        """Forget a model."""
        for key in [key for key in self._graphs if key[0] == digest]:
            del self._graphs[key]
        self.host.unload(digest)

    async def close(self) -> None:
        """End what was started to measure in."""
        await self.host.close()

    async def _measure(self, graph: Mapping[str, Any], **stage: Any) -> StageTiming:
        for _ in range(ATTEMPTS):
            answer = await self._call("measure", graph, **stage)
            if is_latency(answer["latency_us"]):
                break
        return StageTiming(answer["latency_us"], answer["spread"], answer["repeats"])

    async def _call(
        self,
        op: str,
        graph: Mapping[str, Any],
        on_progress: OnProgress | None = None,
        **fields: Any,
    ) -> Any:
        return await self.host.call(op, on_progress=on_progress, **graph, **fields)
