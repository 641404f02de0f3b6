"""Runs stream plans on a GPU: one CUDA graph per plan, or eager streams where capture fails.

    prepare(program, plan):  calls ─> warm up ─> order, releases ─> tape ─> capture ─> PreparedPlan
    run(prepared, inputs):   stage ─> upload ─> replay ─> download ─> outputs

All graphs of an executor share one pool of memory. That is safe because they replay on one stream,
so never at the same time, and what a graph leaves behind for the caller, its outputs, is held by
the ``PreparedPlan``: no later capture is given those blocks.

States of a prepared plan: ready <──> one or two runs started; or released.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter_ns

from torch import Tensor

from core.errors import DeviceOutOfMemory
from core.plan import MAX_STREAMS, StreamPlan, verify_plan
from engine.cuda.calls import Call, plan_calls
from engine.cuda.driver import ORIGIN, Driver, Graph, Partition, Pool, Stream
from engine.cuda.faults import CaptureFailed, classified, classify
from engine.cuda.play import play, warm_up
from engine.cuda.release import Aliases, release_points
from engine.cuda.staging import Staging, Tensors, make_staging, static_buffers
from engine.cuda.tape import Tape, lower, order_calls
from engine.executor.program import Environment, Program

UPLOADS = MAX_STREAMS
"""Index of the stream for inputs that travel beside a replay, the first that no plan has."""


@dataclass(frozen=True, slots=True)
class Levers:
    """What may be done about streams that contend for the device, beside the plan itself."""

    urgent_origin: bool = False  # the stream of the critical path goes first
    partition: Partition | None = None  # of multiprocessors, among the streams


PLAIN = Levers()


@dataclass(frozen=True, slots=True)
class PreparationCost:
    """What a plan took to prepare, and takes while it is kept."""

    warm_up_us: float
    capture_us: float  # instantiation included; 0 if it is not captured
    instantiate_us: float
    peak_bytes: int  # most memory that tensors held at once during the capture, inputs included
    pool_bytes: int  # by which the pool grew; less than the peak where other plans share with it


@dataclass(slots=True, eq=False)
class PreparedPlan:
    """A program under a plan, ready to run."""

    program: Program
    tape: Tape
    streams: tuple[Stream, ...]
    inputs: dict[str, Tensor]  # static: the graph reads them in place
    graph: Graph | None = None
    outputs: dict[str, Tensor] = field(default_factory=dict)  # static: each replay fills them
    eager_because: str = ""  # why there is no graph
    cost: PreparationCost = PreparationCost(0.0, 0.0, 0.0, 0, 0)
    staging: list[Staging] = field(default_factory=list)  # used in turns
    started: int = 0

    @property
    def underway(self) -> int:
        """Runs started and not finished."""
        return sum(staging.busy for staging in self.staging)


@dataclass(frozen=True, slots=True)
class Flight:
    """A run that was started. ``outputs`` keeps an eager run's results alive."""

    staging: Staging
    outputs: Tensors


class CudaExecutor:
    """Owns the graphs of one device. Made and used by one thread."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._pool = driver.pool()
        self._plans: set[PreparedPlan] = set()

    def prepare(self, program: Program, plan: StreamPlan, levers: Levers = PLAIN) -> PreparedPlan:
        """Capture a plan; where that fails, ready it for eager streams and keep the reason.

        Args:
            program: bound to kernels of this device, constants on the device.
            plan: of the program's graph.
            levers: how streams contend.

        Raises:
            InvalidArtefact: the plan does not fit the graph.
            DeviceOutOfMemory: no room, not even after giving back what nothing uses.
            DeviceLost: the process can use the device no more.
        """
        verify_plan(plan, program.graph.predecessors())
        calls = plan_calls(program, plan)
        with classified(f"preparing {program.graph.name!r}"):
            prepared = self._prepare_or_make_room(program, calls, levers)
        self._plans.add(prepared)
        return prepared

    def _prepare_or_make_room(
        self, program: Program, calls: tuple[Call, ...], levers: Levers
    ) -> PreparedPlan:
        try:
            return self._prepare(program, calls, levers)
        except Exception as error:  # its traceback holds tensors, so it must be gone before trim
            if not isinstance(classify(error, ""), DeviceOutOfMemory):
                raise
        self.driver.synchronise()
        self.driver.trim()
        return self._prepare(program, calls, levers)

    def _prepare(self, program: Program, calls: tuple[Call, ...], levers: Levers) -> PreparedPlan:
        driver = self.driver
        driver.synchronise()  # constants may still be on their way, on any stream
        before = driver.memory()
        streams = self._streams(calls, levers)
        inputs = static_buffers(driver, program.graph.inputs)
        began = perf_counter_ns()
        aliases = self._warm_up(program, calls, streams, inputs)
        warm = perf_counter_ns()
        order = order_calls(calls)
        points = release_points(calls, order, aliases, program.kept())
        prepared = PreparedPlan(program, lower(calls, order, points), streams, inputs)
        driver.reset_peak()
        try:
            self._capture(prepared)
        except CaptureFailed as failure:
            prepared.eager_because = failure.reason
        after = driver.memory()
        prepared.cost = PreparationCost(
            warm_up_us=(warm - began) / 1e3,
            capture_us=(perf_counter_ns() - warm) / 1e3 if prepared.graph else 0.0,
            instantiate_us=prepared.graph.instantiate_us if prepared.graph else 0.0,
            peak_bytes=after.peak_allocated - before.allocated,
            pool_bytes=max(0, after.reserved - before.reserved),
        )
        return prepared

    def _warm_up(
        self,
        program: Program,
        calls: tuple[Call, ...],
        streams: tuple[Stream, ...],
        inputs: Tensors,
    ) -> Aliases:
        env = program.environment(inputs)
        aliases = warm_up(calls, env, self.driver, streams, program.kept())
        self._results(program, env, streams)
        self.driver.synchronise()
        return aliases

    def _streams(self, calls: tuple[Call, ...], levers: Levers) -> tuple[Stream, ...]:
        count = 1 + max((call.stream for call in calls), default=ORIGIN)
        return tuple(
            self.driver.stream(
                index,
                urgent=levers.urgent_origin and index == ORIGIN,
                partition=levers.partition,
            )
            for index in range(count)
        )

    def _capture(self, prepared: PreparedPlan) -> None:
        env = prepared.program.environment(prepared.inputs)
        with capturing(self.driver, prepared.streams, self._pool) as captured:
            play(prepared.tape, env, self.driver, prepared.streams)
            prepared.outputs = self._results(prepared.program, env, prepared.streams)
        prepared.graph = captured[0]

    def _results(
        self, program: Program, env: Environment, streams: tuple[Stream, ...]
    ) -> dict[str, Tensor]:
        """The graph's outputs, dense, so that they leave the device in one piece."""
        return {
            name: tensor
            if tensor.is_contiguous()
            else self.driver.launch(streams[ORIGIN], Tensor.contiguous, [tensor])[0]
            for name, tensor in program.results(env).items()
        }

    def run(self, prepared: PreparedPlan, inputs: Tensors) -> dict[str, Tensor]:
        """Run the whole graph once.

        Args:
            prepared: by this executor, and not released.
            inputs: CPU tensors, one for each of the graph's inputs.

        Returns:
            CPU tensors by name, in page-locked memory that the next run but one overwrites.

        Raises:
            DeviceOutOfMemory: an eager run found no room.
            DeviceLost: the process can use the device no more.
        """
        return self.finish(prepared, self.start(prepared, inputs))

    def start(self, prepared: PreparedPlan, inputs: Tensors) -> Flight:
        """Begin a run; at most two of a plan may be under way. Finish them in order."""
        staging = self._next_staging(prepared)
        with classified(f"running {prepared.program.graph.name!r}"):
            self._upload(prepared, staging, inputs)
            outputs = self._launch(prepared)
            staging.download(outputs, self.driver, prepared.streams[ORIGIN])
        staging.busy = True
        return Flight(staging, outputs)

    def finish(self, prepared: PreparedPlan, flight: Flight) -> dict[str, Tensor]:
        """Wait for a run and give its outputs; see ``run``."""
        flight.staging.busy = False
        with classified(f"running {prepared.program.graph.name!r}"):
            self.driver.synchronise(flight.staging.done)
        return dict(flight.staging.outputs)

    def _next_staging(self, prepared: PreparedPlan) -> Staging:
        if len(prepared.staging) < 2:
            prepared.staging.append(make_staging(self.driver, prepared.program.graph))
        staging = prepared.staging[prepared.started % 2]
        assert not staging.busy, "finish the oldest run first"
        prepared.started += 1
        return staging

    def _upload(self, prepared: PreparedPlan, staging: Staging, inputs: Tensors) -> None:
        driver, origin = self.driver, prepared.streams[ORIGIN]
        if not prepared.underway:
            staging.upload(inputs, prepared.inputs, driver, origin)
            return
        uploads, arrived = driver.stream(UPLOADS), driver.event()
        staging.landing = staging.landing or static_buffers(driver, prepared.program.graph.inputs)
        staging.upload(inputs, staging.landing, driver, uploads)
        driver.record(arrived, uploads)
        driver.wait(arrived, origin)
        for name, landed in staging.landing.items():
            driver.copy(prepared.inputs[name], landed, origin)

    def _launch(self, prepared: PreparedPlan) -> dict[str, Tensor]:
        if prepared.graph is not None:
            self.driver.replay(prepared.graph, prepared.streams[ORIGIN])
            return prepared.outputs
        env = prepared.program.environment(prepared.inputs)
        try:
            play(prepared.tape, env, self.driver, prepared.streams)
            return self._results(prepared.program, env, prepared.streams)
        except Exception:
            with suppress(Exception):  # streams that were not joined may still read what env holds
                self.driver.synchronise()
            raise

    def load(self, prepared: PreparedPlan, inputs: Tensors) -> None:
        """Put inputs into place for ``device_us``."""
        staging = self._next_staging(prepared)
        with classified(f"loading inputs of {prepared.program.graph.name!r}"):
            staging.upload(inputs, prepared.inputs, self.driver, prepared.streams[ORIGIN])
            self.driver.synchronise()

    def device_us(self, prepared: PreparedPlan) -> float:
        """Device time of one run on the inputs in place, copies left out."""
        driver, origin = self.driver, prepared.streams[ORIGIN]
        start, end = driver.event(timed=True), driver.event(timed=True)
        with classified(f"timing {prepared.program.graph.name!r}"):
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

    def close(self) -> None:
        """Free everything."""
        for prepared in list(self._plans):
            prepared.staging.clear()
            self.release(prepared)
        self.driver.release_pool(self._pool)
        self.driver.trim()


@contextmanager
def capturing(driver: Driver, streams: tuple[Stream, ...], pool: Pool) -> Iterator[list[Graph]]:
    """Capture what is put on ``streams`` inside; the graph is in the list afterwards.

    Raises:
        CaptureFailed: something inside cannot be captured.
        DeviceOutOfMemory, DeviceLost: as they say. Nothing stays behind in any case.
    """
    captured: list[Graph] = []
    with classified("capturing a CUDA graph"):
        try:
            driver.begin_capture(streams[ORIGIN], pool)
            yield captured
            captured.append(driver.end_capture())
        except BaseException:
            driver.abort_capture(streams)
            raise
