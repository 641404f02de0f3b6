"""The CPU as a worker's device: laid-out plans on a pool of pinned threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from braid.core.device_state import DeviceState
from braid.core.errors import BraidError, DeviceOutOfMemory
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency, StageOverheads, UnitProfile
from braid.core.plan import StreamPlan
from braid.core.precision import FP32
from braid.core.schedule import USUAL_KERNELS
from braid.engine.cpu.border import set_threads
from braid.engine.cpu.core_distance import CoreProbe
from braid.engine.cpu.device_key import (
    ENGINES,
    cpu_device_key,
    has_integer_kernels,
    installed_engines,
    offered_precisions,
    software_versions,
)
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.lanes import lay_out
from braid.engine.cpu.stage_timer import CpuStageTimer, measure_overheads
from braid.engine.device import (
    AskedStage,
    Backend,
    FinishedRun,
    MakeInputs,
    Prepared,
)
from braid.engine.passes.specialise import interpreted
from braid.engine.program.engines import Engine, EnginePlace, Whole
from braid.engine.program.kernel import PackedWeights, Values
from braid.engine.program.program import NO_PARTS, OpenedParts, Program
from braid.engine.program.work import estimated_profile
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.memory import is_out_of_memory
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.threads import PinnedTeam
from braid.engine.runtime.yielding import YieldToRequests, in_thread, no_pause
from braid.engine.timing.contenders import TimedContender, timed
from braid.engine.timing.samples import TimerOptions


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A program laid out on the executor's threads."""

    executor: CpuExecutor
    program: Program
    plan: LanePlan

    @property
    def activation_bytes(self) -> int | None:
        return self.plan.arena_bytes or None

    def run(self, inputs: Arrays, pause: YieldToRequests | None = None) -> Arrays:
        return self.executor.run(self.program, self.plan, inputs, pause)

    def begin(self, inputs: Arrays, outputs: Arrays | None = None) -> FinishedRun:
        """Run the whole graph: the calling thread is one of those that compute."""
        results = self.executor.run(self.program, self.plan, inputs, outputs=outputs)
        return FinishedRun(results)

    def release(self) -> None:
        """Do nothing: a plan on a CPU holds only memory of this process."""


class CpuBackend:
    """A ``Backend`` over a ``CpuExecutor``."""

    def __init__(
        self,
        executor: CpuExecutor,
        activation_bytes: int = 1 << 30,
        timer: TimerOptions | None = None,
        device_cpus: Sequence[int] | None = None,
        cpu_quota: float = 0.0,
    ) -> None:
        """``device_cpus`` are all cores of the device, of which the executor may have a part."""
        self._executor = executor
        options = timer or TimerOptions()
        self._probe = CoreProbe(executor.lane_cores)
        self._timer = CpuStageTimer(executor, activation_bytes, options, lambda: self._probe.groups)
        self._places: dict[int, Sequence[CpuPlace]] = {}
        self._device_cpus = executor.cpus if device_cpus is None else device_cpus
        self._cpu_quota = cpu_quota

    @property
    def threads(self) -> int:
        return self._executor.threads

    @property
    def precisions(self) -> tuple[str, ...]:
        return offered_precisions()

    @property
    def computes_on_integers(self) -> bool:
        return has_integer_kernels()

    def device_key(self) -> str:
        return cpu_device_key(self.threads, self._executor.usable_cores, self._cpu_quota)

    def state(self, pause: YieldToRequests = no_pause) -> DeviceState:
        self._probe.move_to(self._executor.lane_cores)
        return self._probe.look(pause.answer)

    def software(self) -> dict[str, str]:
        return software_versions()

    def reserved_bytes(self) -> None:
        """None: all memory is the process's own."""

    def bind(
        self,
        graph: OpGraph,
        constants: Values,
        packed: PackedWeights,
        pause: YieldToRequests,
        precision: str = FP32,
        choices: Mapping[str, str] = USUAL_KERNELS,
    ) -> Program:
        return bind_on_cpu(graph, constants, packed, self.threads, choices, pause)

    def prepare(
        self,
        program: Program,
        plan: StreamPlan,
        pause: YieldToRequests = no_pause,
        opened: OpenedParts = NO_PARTS,
    ) -> LaidOut:
        segments = lay_out(program, plan, self.threads, opened, self._probe.groups)
        return LaidOut(self._executor, program, LanePlan(segments))

    def places(self, count: int) -> Sequence[CpuPlace]:
        """``count`` places, made when first asked for; none if the threads do not divide so."""
        if count < 2 or self.threads % count:
            return ()
        if count not in self._places:
            backend_of = partial(
                CpuBackend, device_cpus=self._device_cpus, cpu_quota=self._cpu_quota
            )
            self._places[count] = divided(self._executor, count, backend_of)
        return self._places[count]

    def interpret(self, program: Program, inputs: Arrays, pause: YieldToRequests) -> Arrays:
        """Run registry kernels one after the other, with low priority unless ``pause`` is none."""
        run = partial(interpreted, program.graph, program.tensors(), inputs)
        if pause is no_pause:
            return run()

        def aside() -> Arrays:
            thread_gives_way()
            if self._executor.cpus:  # not on the one core of the device's thread
                os.sched_setaffinity(0, self._executor.cpus)
            set_threads(self.threads)
            return run()

        return in_thread(aside, pause)

    @property
    def runtimes(self) -> Sequence[str]:
        return tuple(installed_engines())

    def engine(self, runtime: str) -> Engine:
        return ENGINES[runtime]

    def engine_place(self, callers: int = 1, threads: int = 0) -> EnginePlace:
        count, cpus = threads or self.threads, self._executor.cpus
        return EnginePlace(
            count, cpus[:count], self._device_cpus, callers, spins=not self._cpu_quota
        )

    def profile(self, unit: Operator, graph: OpGraph) -> UnitProfile:
        return estimated_profile(unit, graph)

    def overheads(self) -> Generator[None, None, StageOverheads]:
        return measure_overheads(self._executor)

    def measure(
        self, program: Program, inputs: MakeInputs, stage: AskedStage, pause: YieldToRequests
    ) -> Generator[None, None, StageLatency]:
        return self._timer.measure(program, inputs, stage, pause)

    def forget(self) -> None:
        self._timer.forget()

    def contender(self, prepared: Prepared, outputs: Arrays | None) -> TimedContender:
        """A contender that runs as a request's batch does: on this thread, into the same memory."""
        return TimedContender(
            timed(lambda inputs, _: prepared.begin(inputs, outputs).finish()),
            activation_bytes=lambda: prepared.activation_bytes,
        )

    def whole_contender(self, whole: Whole, outputs: Arrays | None) -> TimedContender:
        def run(inputs: Arrays, _: YieldToRequests) -> Arrays:
            if outputs is None:
                return whole.run(inputs)
            whole.run_into(inputs, outputs)
            return outputs

        return TimedContender(timed(run))

    def fault(self, error: Exception) -> BraidError | None:
        if is_out_of_memory(error):
            return DeviceOutOfMemory(
                "the device has no memory left for this; send fewer rows or smaller ones, or raise "
                "BRAID_WORKER_MEMORY_BYTES on the server"
            )
        return None

    def close(self) -> None:
        for places in self._places.values():
            for place in places:
                place.close()
        self._executor.close()


class CpuPlace:
    """A ``DevicePart`` with a ``CpuExecutor`` of its own; used by one thread.

    Two runs on one thread each wait for each other at no operator, so together they compute more
    than one run after the other on both threads. A place runs programs that are bound for it alone:
    a primitive has one caller at a time (engine/onednn/library.py). Packed weights are shared.
    """

    def __init__(
        self, span: range, cpus: Sequence[int], backend_of: Callable[[CpuExecutor], Backend]
    ) -> None:
        self.span = span
        self._team = PinnedTeam(f"place-{span.start}+{len(span)}", len(span), ())
        self._has_begun = False
        executors: list[CpuExecutor] = []
        self.start(lambda: executors.append(CpuExecutor(len(span), cpus)))
        self.join()
        self._executor = executors[0]
        self.backend = backend_of(self._executor)

    def start(self, work: Callable[[], None]) -> None:
        """Begin ``work`` on the leading thread; waits for the work before it."""
        self.join()
        self._has_begun = True
        self._team.start(work)

    def close(self) -> None:
        self.join()
        self._team.close()
        self._executor.close()

    def join(self) -> None:
        """Wait for the work that was begun last, and raise what it raised."""
        if self._has_begun:
            self._has_begun = False
            if (error := self._team.join()) is not None:
                raise error


def divided(
    executor: CpuExecutor, count: int, backend_of: Callable[[CpuExecutor], Backend]
) -> list[CpuPlace]:
    """Places that share the threads and cores of ``executor``, of which ``count`` is a divisor."""
    spans = spans_of(executor.threads, count)
    return [CpuPlace(span, executor.cpus[span.start : span.stop], backend_of) for span in spans]


def spans_of(threads: int, count: int) -> list[range]:
    """Threads of each place: they follow one another, as those of a group of near cores do."""
    size = threads // count
    return [range(first, first + size) for first in range(0, threads, size)]
