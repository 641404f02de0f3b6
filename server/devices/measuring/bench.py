"""Static graphs of models on a device, and latencies of their parts, for registration jobs.

jobs ──> Bench ──> MeasuringHost, a worker that measures     (server/devices/measuring/host.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from braid.core.graph import OpGraph, graph_from_json
from braid.core.json_form import from_json, to_json
from braid.core.measurement import (
    DeviceFacts,
    PlanMeasurement,
    StageLatency,
    is_latency,
)
from braid.core.plan import StreamPlan, plan_to_json
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.engine.link.worker_process import OnProgress
from braid.server.devices.measuring.host import MeasuringHost
from braid.server.jobs.interfaces import UnitKernels

ATTEMPTS = 3
"""Number of attempts to measure a stage, as long as its latency is impossible, such as 0 us."""


class Bench:
    """Measurements on one device. A cancelled call stops measuring.

    Any call raises WorkerRestarting if there is no worker to measure in, or it died, and
    DamagedArtefact if the device lost the model.
    """

    def __init__(self, host: MeasuringHost, loaded: Callable[[str], object]) -> None:
        """``loaded`` raises DamagedArtefact if the device lost the model with a digest."""
        self.host = host
        self._loaded = loaded

    @property
    def is_measuring(self) -> bool:
        """Whether a process beside the serving worker measures now."""
        return self.host.is_measuring

    def wake(self) -> None:
        """Prepare for calls that will come soon."""
        self.host.wake()

    async def static_graph(self, program: ProgramKey) -> OpGraph:
        """Static graph of a program; its operators are the schedule units.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
        """
        answer = await self._call("describe", program)
        return graph_from_json(answer["graph"])

    async def facts(self, program: ProgramKey) -> DeviceFacts:
        """Facts of the device about a program's units, besides latencies."""
        return from_json(DeviceFacts, await self._call("facts", program))

    async def kernels(self, program: ProgramKey) -> list[UnitKernels]:
        """Units of a program that more than one kernel can run."""
        answer = await self._call("kernels", program)
        return [
            UnitKernels(each["signature"], tuple(each["units"]), tuple(each["variants"]))
            for each in answer["kernels"]
        ]

    async def measure_kernel(
        self, program: ProgramKey, unit: int, variant: str, hopeless_us: float
    ) -> StageLatency:
        """Latency of one unit on a kernel, in microseconds; roughly if above ``hopeless_us``."""
        return await self._measure(
            program,
            groups=[[unit]],
            variant=variant,
            hopeless_us=None if hopeless_us == inf else hopeless_us,
        )

    async def measure_stage(
        self, program: ProgramKey, stage: Stage, threads: int | None = None
    ) -> StageLatency:
        """Latency of one stage of a program, measured while inference goes first.

        ``threads`` is the number that the stage may use; None: all.
        """
        return await self._measure(
            program,
            groups=[list(group) for group in stage.groups],
            strategy=stage.strategy,
            threads=threads,
        )

    async def compare(
        self,
        program: ProgramKey,
        plans: Sequence[StreamPlan],
        *,
        onnxruntime: bool,
        tolerance: float,
        on_progress: Callable[[float], None],
    ) -> list[PlanMeasurement]:
        """Whole models against each other, in turns in one run; the first plan is the baseline."""
        answer = await self._call(
            "compare",
            program,
            on_progress,
            plans=[plan_to_json(plan) for plan in plans],
            onnxruntime=onnxruntime,
            tolerance=tolerance,
        )
        return [from_json(PlanMeasurement, each) for each in answer["contenders"]]

    def unload(self, digest: str) -> None:
        """Forget a model."""
        self.host.unload(digest)

    async def close(self) -> None:
        """End the measuring process, if there is one."""
        await self.host.close()

    async def _measure(self, program: ProgramKey, **stage: Any) -> StageLatency:
        for _ in range(ATTEMPTS):
            answer = await self._call("measure", program, **stage)
            if is_latency(answer["latency_us"]):
                break
        return StageLatency(answer["latency_us"], answer["spread"], answer["repeats"])

    async def _call(
        self,
        op: str,
        program: ProgramKey,
        on_progress: OnProgress | None = None,
        **fields: Any,
    ) -> Any:
        self._loaded(program.digest)
        return await self.host.call(
            op, program.digest, on_progress, program=to_json(program), **fields
        )
