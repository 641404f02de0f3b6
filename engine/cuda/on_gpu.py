"""A prepared plan and its runs, as the worker handles them."""

from __future__ import annotations

from dataclasses import dataclass

from braid.engine.cuda.executor import CudaExecutor, StagedRun
from braid.engine.cuda.graphs.prepare import PreparedPlan
from braid.engine.device import Tensors
from braid.engine.program.input_ranges import InputRange, check_inputs
from braid.engine.runtime.yielding import YieldToRequests


@dataclass(frozen=True, slots=True)
class GpuRun:
    """A run that the GPU works on, or has done."""

    executor: CudaExecutor
    plan: PreparedPlan
    run: StagedRun

    def is_done(self) -> bool:
        return self.executor.is_done(self.run)

    def finish(self) -> Tensors:
        """Wait for the outputs, in page-locked memory that the next run but one overwrites."""
        return self.executor.finish(self.plan, self.run)


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A plan that is captured, or ready for eager streams."""

    executor: CudaExecutor
    plan: PreparedPlan
    ranges: tuple[InputRange, ...]

    @property
    def activation_bytes(self) -> int | None:
        """Most bytes that tensors held at once during the capture; None if not captured."""
        return self.plan.cost.peak_bytes or None

    def run(self, inputs: Tensors, _: YieldToRequests | None = None) -> Tensors:
        return self.begin(inputs).finish()

    def begin(self, inputs: Tensors, outputs: Tensors | None = None) -> GpuRun:
        """Put a run on the GPU; outputs arrive in page-locked memory, never in ``outputs``."""
        check_inputs(self.ranges, inputs)
        return GpuRun(self.executor, self.plan, self.executor.start(self.plan, inputs))

    def device_us(self, _: Tensors) -> float:
        return self.executor.device_us(self.plan)

    def release(self) -> None:
        self.executor.release(self.plan)
