"""Static graphs of models on a device, and latencies of their parts, for registration jobs.

jobs ──> Bench ──> MeasuringHost, a worker that measures     (server/devices/measuring/host.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TypeVar

from braid.core.errors import ImpossibleLatency
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts, PlanMeasurement, StageLatency
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey, UnitKernels
from braid.core.quantisation import Quantisation
from braid.core.schedule import Stage
from braid.engine.link.messages import (
    Calibrate,
    ComparePlans,
    CompareThroughput,
    DescribeProgram,
    FindFacts,
    FindKernels,
    MeasureStage,
    PlaceMeasurement,
    ProgramRequest,
)
from braid.engine.link.worker_process import OnProgress
from braid.server.devices.measuring.host import MeasuringHost

R = TypeVar("R")

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

    def prepare(self) -> None:
        """Start ahead what a registration will need."""
        self.host.prepare()

    def wake(self) -> None:
        """Prepare for calls that will come soon."""
        self.host.wake()

    async def static_graph(self, program: ProgramKey) -> OpGraph:
        """Static graph of a program; its operators are the schedule units.

        Raises:
            InvalidRequest: the model cannot run at these shapes.
        """
        return (await self._call(DescribeProgram(program))).graph

    async def facts(self, program: ProgramKey) -> DeviceFacts:
        """Facts of the device about a program's units, besides latencies."""
        return await self._call(FindFacts(program))

    async def kernels(self, program: ProgramKey) -> Sequence[UnitKernels]:
        """Units of a program that more than one kernel can run."""
        return (await self._call(FindKernels(program))).kernels

    async def measure_kernel(
        self, program: ProgramKey, unit: int, variant: str, hopeless_us: float
    ) -> StageLatency:
        """Latency of one unit on a kernel, in microseconds; roughly if above ``hopeless_us``."""
        above_us = None if hopeless_us == inf else hopeless_us
        stage = Stage(((unit,),))
        return await self._measure(MeasureStage(program, stage, None, variant, above_us))

    async def measure_stage(
        self, program: ProgramKey, stage: Stage, threads: int | None = None
    ) -> StageLatency:
        """Latency of one stage of a program, measured while inference goes first.

        ``threads`` is the number that the stage may use; None: all.
        """
        return await self._measure(MeasureStage(program, stage, threads))

    async def compare(
        self,
        fields: Sequence[PlansToCompare],
        *,
        on_progress: Callable[[float], None],
        samples: str = "",
        is_brief: bool = False,
    ) -> Sequence[PlanMeasurement]:
        """Whole models against each other, in turns in one run; the first plan is the baseline."""
        request = ComparePlans(fields[0].program, tuple(fields), samples, is_brief)
        return (await self._call(request, on_progress)).plans

    async def calibrate(
        self,
        program: ProgramKey,
        *,
        samples: str,
        tolerance: float,
        on_progress: Callable[[float], None],
    ) -> Quantisation:
        """Find how a program computes on 8-bit integers, with ranges from samples."""
        return await self._call(Calibrate(program, samples, tolerance), on_progress)

    async def throughput(
        self, to_run: PlanToRun, *, runtimes: Sequence[str], tolerance: float
    ) -> Sequence[PlaceMeasurement]:
        """Runs side by side on parts of the threads, beside runs of a plan on all of them."""
        request = CompareThroughput(to_run.program, to_run, tuple(runtimes), tolerance)
        return (await self._call(request)).ways

    async def _measure(self, request: MeasureStage) -> StageLatency:
        """Measure a stage, again as long as its latency cannot be; ``ATTEMPTS`` times at most."""
        for _ in range(ATTEMPTS - 1):
            with suppress(ImpossibleLatency):
                return await self._call(request)
        return await self._call(request)

    async def _call(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        self._loaded(request.program.digest)
        return await self.host.call(request, on_progress)
