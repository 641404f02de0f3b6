"""A GPU as a worker's device: plans as CUDA graphs, kernels of cuDNN, cuBLAS and Inductor.

    Worker ──> CudaBackend ──> CudaExecutor   captured plans        (executor.py)
                          ├──> CudaStageTimer     stages inside graphs  (stage_timer.py)
                          └──> CudaKernels    kernels               (kernels/candidates.py)

Faults (docs/decisions/0020-several-devices.md): out of memory fails the call that met it, after
unused memory was given back and it was tried once more; a lost device ends the process.
"""

import functools
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from braid.core.device_state import UNKNOWN, DeviceState
from braid.core.errors import BraidError, PreconditionFailed
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency, StageOverheads, UnitProfile
from braid.core.plan import MAX_STREAMS, StreamPlan
from braid.core.precision import FP32
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import USUAL_KERNELS
from braid.engine.cuda.driver.faults import classify, first_line
from braid.engine.cuda.driver.interface import Driver
from braid.engine.cuda.executor import CudaExecutor, StagedRun
from braid.engine.cuda.graphs.prepare import PreparedPlan
from braid.engine.cuda.identity import GpuIdentity
from braid.engine.cuda.kernels.candidates import offered_precisions
from braid.engine.device import AskedStage, DevicePart, MakeInputs, Prepared, StageTimer
from braid.engine.ops.dtypes import arrays_of, copy_into, tensor_of, tensors_of
from braid.engine.ops.whole import KIND as ON_HOST
from braid.engine.passes.specialise import interpret, interpreted
from braid.engine.program.engines import Engine, EnginePlace, Whole
from braid.engine.program.input_ranges import InputRange, check_inputs, input_ranges
from braid.engine.program.kernel import KernelSource, PackedWeights, Values
from braid.engine.program.onnxruntime_session import CUDA_PROVIDER, OnnxRuntime
from braid.engine.program.program import NO_PARTS, Binding, OpenedParts, Program, bind
from braid.engine.program.work import estimated_flop, estimated_profile
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.timing.contenders import TimedContender, timed, timed_aside
from braid.engine.timing.overheads import CHAIN, tiny_graph

KernelsFor = Callable[[str], KernelSource]  # for programs of one precision

FLOP_PER_BYTE = 14.0
"""Operations per byte moved of an H200 in FP32, by its datasheet: 67 TFLOP/s, 4.8 TB/s."""


WINOGRAD = 4.0  # factor by which Winograd's method multiplies less than a convolution's definition
TENSOR_CORES = 16.0  # speed-up of tensor cores in FP16, by datasheets; less in TF32

MIN_US = 1e-3

log = logging.getLogger("braid.worker")


@dataclass(frozen=True, slots=True)
class RunOnGpu:
    """A run that was started, whose outputs arrive in page-locked memory."""

    staged: StagedRun
    outputs: Arrays | None  # where they are copied from there

    def is_done(self) -> bool:
        return self.staged.is_done()

    def finish(self) -> Arrays:
        results = arrays_of(self.staged.finish())
        return results if self.outputs is None else copy_into(self.outputs, results)


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A plan that is captured, or ready for eager streams."""

    executor: CudaExecutor
    plan: PreparedPlan
    ranges: tuple[InputRange, ...]

    @property
    def activation_bytes(self) -> int | None:
        """Most bytes that tensors held at once during the capture; None if not captured."""
        return self.plan.peak_bytes or None

    def run(self, inputs: Arrays, _: YieldToRequests | None = None) -> Arrays:
        return self.begin(inputs).finish()

    def begin(self, inputs: Arrays, outputs: Arrays | None = None) -> RunOnGpu:
        """Put a run on the GPU, where arrays are tensors."""
        check_inputs(self.ranges, inputs)
        return RunOnGpu(self.executor.start(self.plan, tensors_of(inputs)), outputs)

    def device_us(self, _: Arrays) -> float:
        return self.executor.device_us(self.plan)

    def release(self) -> None:
        self.executor.release(self.plan)


class CudaBackend:
    """A ``Backend`` over a ``CudaExecutor``."""

    def __init__(
        self,
        driver: Driver,
        identity: GpuIdentity,
        kernels: KernelsFor,
        timer: StageTimer,
        host_threads: int,
    ) -> None:
        """``kernels`` are made for a precision; ``host_threads`` run units on the CPU."""
        self._driver = driver
        self._identity = identity
        self._kernels = functools.cache(kernels)
        self._timer = timer
        self._host_threads = host_threads
        self._executor = CudaExecutor(driver)

    def lock_pages(self, memory: Array) -> None:
        """Copy inputs that lie in ``memory`` from where they are, if the system lets us."""
        try:
            self._executor.lock_pages(tensor_of(memory))
        except RuntimeError as error:
            log.warning("inputs are copied once more on the host: %s", first_line(error))

    @property
    def threads(self) -> int:
        return MAX_STREAMS

    @property
    def precisions(self) -> tuple[str, ...]:
        return offered_precisions(self._identity.capability)

    @property
    def computes_on_integers(self) -> bool:
        """Always false: quantised models run in FP32."""
        return False

    def device_key(self) -> str:
        return self._identity.device_key

    def state(self, pause: YieldToRequests = no_pause) -> DeviceState:
        """Nothing is known: no host moves the parts of a GPU."""
        return UNKNOWN

    def software(self) -> dict[str, str]:
        return self._identity.software

    def reserved_bytes(self) -> int:
        return self._driver.memory().reserved

    def bind(
        self,
        graph: OpGraph,
        constants: Values,
        packed: PackedWeights,
        pause: YieldToRequests,
        precision: str = FP32,
        choices: Mapping[str, str] = USUAL_KERNELS,
    ) -> Program:
        binding = Binding(self._kernels(precision), 1, packed, choices)
        return self._executor.with_room(
            f"loading {graph.name!r}",
            lambda: bind(graph, constants, binding, pause),
        )

    def prepare(
        self,
        program: Program,
        plan: StreamPlan,
        pause: YieldToRequests = no_pause,
        opened: OpenedParts = NO_PARTS,
    ) -> OnGpu:
        """Capture the plan, or ready it for eager streams."""
        if plan.parts:
            raise PreconditionFailed("a GPU runs no parts of a model in engines")
        prepared = self._executor.prepare(program, plan, pause)
        if prepared.eager_because:
            log.warning("%s runs eagerly: %s", program.graph.name, prepared.eager_because)
        return OnGpu(self._executor, prepared, input_ranges(program.graph))

    def places(self, count: int) -> Sequence[DevicePart]:
        """None: a GPU overlaps the work of one plan, and its runs follow on each other."""
        return ()

    def interpret(self, program: Program, inputs: Arrays, pause: YieldToRequests) -> Arrays:
        """Run registry kernels on the device, one after the other, in full FP32."""
        graph, constants = program.graph, program.constants()
        if any(unit.kind == ON_HOST for unit in graph.operators):
            on_host = {name: tensor.cpu() for name, tensor in constants.items()}
            return interpreted(graph, on_host, inputs, pause)
        check_inputs(input_ranges(graph), inputs)
        device = self._driver.device

        def run() -> Arrays:
            placed = {name: tensor_of(array).to(device) for name, array in inputs.items()}
            return arrays_of(interpret(graph, constants, placed, pause, device))

        return self._executor.with_room(f"interpreting {graph.name!r}", run)

    @property
    def runtimes(self) -> Sequence[str]:
        return (ONNXRUNTIME,)

    def engine(self, runtime: str) -> Engine:
        return OnnxRuntime(CUDA_PROVIDER)

    def engine_place(self, callers: int = 1, threads: int = 0) -> EnginePlace:
        return EnginePlace(threads or self._host_threads)

    def profile(self, unit: Operator, graph: OpGraph) -> UnitProfile:
        """Estimate a unit's use of the device by the rates of a data centre's GPU."""
        return estimated_profile(unit, graph, FLOP_PER_BYTE)

    def overheads(self) -> Generator[None, None, StageOverheads]:
        one = yield from self._tiny_us([1])
        chain = yield from self._tiny_us([CHAIN])
        pair = yield from self._tiny_us([1, 1])
        launch = max(0.0, (chain - one) / (CHAIN - 1))
        return StageOverheads(max(0.0, one - launch), max(0.0, pair - one), launch)

    def _tiny_us(self, groups: list[int]) -> Generator[None, None, float]:
        graph, members = tiny_graph(groups)
        program = self.bind(graph, {}, PackedWeights(), no_pause)
        inputs = {"x": np.zeros(16, np.float32)}
        timing = yield from self.measure(program, lambda: inputs, AskedStage(members), no_pause)
        return timing.latency_us

    def measure(
        self, program: Program, inputs: MakeInputs, stage: AskedStage, pause: YieldToRequests
    ) -> Generator[None, None, StageLatency]:
        """With one thread, a lower bound: a GPU cannot be given in part to a measurement.

        Planners then ask how long a unit occupies the whole device at least: the time of its
        arithmetic at the peak rate.
        """
        if stage.threads == 1:
            return StageLatency(max(MIN_US, self._peak_us(program, stage) * self.threads), 0.0, 1)
        return (yield from self._timer.measure(program, inputs, stage, pause))

    def _peak_us(self, program: Program, stage: AskedStage) -> float:
        units = [program.graph.operators[unit] for group in stage.groups for unit in group]
        flop = sum(estimated_flop(unit, program.graph) for unit in units)
        in_fp32 = program.binding.source is self._kernels(FP32)
        saved = WINOGRAD * (1.0 if in_fp32 else TENSOR_CORES)
        return flop / saved / self._identity.fp32_flop_per_us

    def forget(self) -> None:
        self._timer.forget()

    def contender(self, prepared: Prepared, outputs: Arrays | None) -> TimedContender:
        """A contender timed on the device, without the copies, which are the same for all plans."""
        assert isinstance(prepared, OnGpu)
        return TimedContender(
            timed(prepared.run), prepared.device_us, lambda: prepared.activation_bytes
        )

    def whole_contender(self, whole: Whole, outputs: Arrays | None) -> TimedContender:
        """A contender that leaves this thread, which serves, to requests."""
        return TimedContender(timed_aside(whole.run))

    def fault(self, error: Exception) -> BraidError | None:
        return classify(error, "serving")

    def close(self) -> None:
        self._executor.close()
