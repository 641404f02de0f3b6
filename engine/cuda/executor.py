"""Executor of stream plans on a GPU: a CUDA graph per plan, or eager streams if capture fails.

    prepare(program, plan)   ─> PreparedPlan                                 (prepare.py)
    run(prepared, inputs)    ─> [stage] ─> upload ─> replay ─> download ─> outputs

All graphs of an executor share one pool of memory. That is safe because they replay on one stream,
so never at the same time, and what a graph leaves behind for the caller, its outputs, is held by
the ``PreparedPlan``: no later capture is given those blocks.

States of a prepared plan: ready <──> one or two runs started; or released.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from braid.core.errors import DeviceOutOfMemory
from braid.core.plan import MAX_STREAMS, StreamPlan, verify_plan
from braid.engine.cuda.driver.faults import classified
from braid.engine.cuda.driver.interface import ORIGIN, Driver, Pool
from braid.engine.cuda.graphs.calls import plan_calls
from braid.engine.cuda.graphs.issue import issue
from braid.engine.cuda.graphs.prepare import PreparedPlan, prepare_calls, results
from braid.engine.cuda.graphs.staging import Staging, Tensors, make_staging
from braid.engine.program.program import Program
from braid.engine.runtime.yielding import YieldToRequests, no_pause

T = TypeVar("T")

UPLOADS = MAX_STREAMS  # stream for inputs that travel beside a replay; the first that no plan uses


@dataclass(frozen=True, slots=True)
class StagedRun:
    """A run that was started. ``outputs`` keeps an eager run's results alive."""

    executor: CudaExecutor
    plan: PreparedPlan
    staging: Staging
    outputs: Tensors

    def is_done(self) -> bool:
        """Whether ``finish`` would return without waiting; it raises what went wrong."""
        try:
            return self.executor.driver.reached(self.staging.done)
        except RuntimeError:
            return True

    def finish(self) -> dict[str, Tensor]:
        """Wait for the outputs, in page-locked memory that the next run but one overwrites."""
        return self.executor.finish(self)


class CudaExecutor:
    """Owns the graphs of one device. Made and used by one thread."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._origin = driver.stream(ORIGIN)  # of all replays, whatever origin a capture had
        self._pool: Pool | None = None
        self._plans: set[PreparedPlan] = set()
        self._underway = 0  # runs started and not finished, of all plans
        self._page_locked: list[range] = []  # addresses

    def lock_pages(self, memory: Tensor) -> None:
        """Let inputs in ``memory`` be copied from there; ``RuntimeError`` if the system refuses."""
        self.driver.lock_pages(memory)
        first = memory.data_ptr()
        self._page_locked.append(range(first, first + memory.nbytes))

    def prepare(
        self,
        program: Program,
        plan: StreamPlan,
        pause: YieldToRequests = no_pause,
    ) -> PreparedPlan:
        """Capture a plan; where that fails, ready it for eager streams and keep the reason.

        ``pause`` is called during the warm-up; runs of other plans may begin and end in it.

        Raises:
            InvalidArtefact: the plan does not fit the graph.
            DeviceOutOfMemory: no room, not even after giving back what nothing uses.
            DeviceLost: the process can use the device no more.
        """
        verify_plan(plan, program.graph.predecessors())
        calls = plan_calls(program, plan)

        def attempt() -> PreparedPlan:
            self._pool = self._pool or self.driver.pool()
            return prepare_calls(self.driver, self._pool, program, calls, pause)

        prepared = self.with_room(f"preparing {program.graph.name!r}", attempt)
        self._plans.add(prepared)
        return prepared

    def with_room(self, doing: str, work: Callable[[], T]) -> T:
        """Do work that needs device memory; once more after giving back what nothing uses."""
        try:
            with classified(doing):
                return work()
        except DeviceOutOfMemory:
            pass  # and with it the traceback, which holds tensors
        self.driver.synchronise()
        self._drop_empty_pool()
        self.driver.trim()
        with classified(doing):
            return work()

    def _drop_empty_pool(self) -> None:
        """Release the pool if no plan is left: it gives no memory back before."""
        if self._pool is not None and not self._plans:
            self.driver.release_pool(self._pool)
            self._pool = None

    def run(self, prepared: PreparedPlan, inputs: Tensors) -> dict[str, Tensor]:
        """Run the graph once on CPU tensors.

        The outputs lie in page-locked memory that the next run but one overwrites.

        Raises:
            DeviceOutOfMemory: an eager run found no room.
            DeviceLost: the process can use the device no more.
        """
        return self.start(prepared, inputs).finish()

    def start(self, prepared: PreparedPlan, inputs: Tensors) -> StagedRun:
        """Begin a run; at most two of a plan may be under way. Finish them in order.

        Inputs in memory given to ``lock_pages`` do not change until then.
        """
        staging = self._next_staging(prepared)
        with classified(f"running {prepared.program.graph.name!r}"):
            self._upload(prepared, staging, inputs)
            outputs = self._launch(prepared)
            staging.download(outputs, self.driver, self._origin)
        staging.busy = True
        prepared.started += 1
        self._underway += 1
        return StagedRun(self, prepared, staging, outputs)

    def finish(self, run: StagedRun) -> dict[str, Tensor]:
        run.staging.busy = False
        self._underway -= 1
        with classified(f"running {run.plan.program.graph.name!r}"):
            self.driver.synchronise(run.staging.done)
        return dict(run.staging.outputs)

    def _next_staging(self, prepared: PreparedPlan) -> Staging:
        if len(prepared.staging) <= prepared.started % 2:
            prepared.staging.append(make_staging(self.driver, prepared.program.graph))
        staging = prepared.staging[prepared.started % 2]
        assert not staging.busy, "finish the oldest run first"
        return staging

    def _upload(self, prepared: PreparedPlan, staging: Staging, inputs: Tensors) -> None:
        """Bring inputs to where the graph reads them, beside any run that is under way."""
        driver, origin = self.driver, self._origin
        if not self._underway:
            staging.upload(inputs, prepared.inputs, driver, origin, self._page_locked)
            return
        uploads, arrived = driver.stream(UPLOADS), driver.event()
        in_use = prepared.underway > 0
        if in_use and not staging.landing:
            staging.make_landing(prepared.inputs, driver)
            landing_free = driver.event()
            driver.record(landing_free, origin)  # which may still use what it freed
            driver.wait(landing_free, uploads)
        targets = staging.landing if in_use else prepared.inputs
        staging.upload(inputs, targets, driver, uploads, self._page_locked)
        driver.record(arrived, uploads)
        driver.wait(arrived, origin)
        for name, target in prepared.inputs.items() if in_use else ():
            driver.copy(target, staging.landing[name], origin)

    def _launch(self, prepared: PreparedPlan) -> dict[str, Tensor]:
        if prepared.graph is not None:
            self.driver.replay(prepared.graph, self._origin)
            return prepared.outputs
        env = prepared.program.environment(prepared.inputs)
        try:
            issue(prepared.commands, env, self.driver, prepared.streams)
            return results(self.driver, prepared.program, env, self._origin)
        except Exception:
            with suppress(Exception):  # streams that were not joined may still read what env holds
                self.driver.synchronise()
            raise

    def device_us(self, prepared: PreparedPlan) -> float:
        """Device time of one run on the inputs of the run before, copies left out.

        A first replay keeps the device busy while the host launches the second, which is timed:
        otherwise the launch would count as device time.
        """
        driver, origin = self.driver, self._origin
        start, end = driver.event(timed=True), driver.event(timed=True)
        with classified(f"timing {prepared.program.graph.name!r}"):
            self._launch(prepared)
            driver.record(start, origin)
            self._launch(prepared)
            driver.record(end, origin)
            driver.synchronise(end)
            return driver.elapsed_us(start, end)

    def release(self, prepared: PreparedPlan) -> None:
        """Free a plan's graph and memory; its runs are finished."""
        assert not prepared.underway, "a run of this plan is not finished"
        if prepared.graph is not None:
            self.driver.destroy(prepared.graph)
        prepared.graph = None
        prepared.outputs, prepared.inputs = {}, {}
        prepared.staging.clear()
        self._plans.discard(prepared)
        self._drop_empty_pool()

    def close(self) -> None:
        for prepared in list(self._plans):
            prepared.staging.clear()
            self.release(prepared)
        self._drop_empty_pool()
        self.driver.trim()
