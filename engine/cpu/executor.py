"""Executor of plans on a CPU: each lane on a team of pinned threads.

torch operators release the GIL, so lanes overlap. A *team* is a Python thread and an OpenMP team
of fixed size, each thread pinned to a core of its own; teams that grow and shrink would lose
threads and pins. The calling thread leads the team of all cores; with one thread it can also be
a lane by itself, without touching its team. Other teams are made when a segment first needs them
(engine/runtime/threads.py).

    2 threads, lanes 1 + 1:   caller on core 0 (its team on core 1 sleeps) │ team of core 1
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter_ns

import numpy as np

from braid.engine.cpu.border import laid, set_threads
from braid.engine.cpu.compile import compile_layout
from braid.engine.cpu.lane_plan import LanePlan, bind_if_repeated
from braid.engine.cpu.lanes import Segment, Slots, Step, lay_out_stage
from braid.engine.cpu.memory import ActivationMemory
from braid.engine.cpu.segments import (
    Compiled,
    NativeSegment,
    Runner,
    Slices,
    find_runner,
    run_native,
)
from braid.engine.ops.dtypes import copy_into
from braid.engine.program.kernel import Kernel
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Array, Arrays, address_of, holds_floats
from braid.engine.runtime.stopping import check_stopped, stop_signal
from braid.engine.runtime.threads import PinnedTeam, make_pinned_team, usable_cpus
from braid.engine.runtime.yielding import YieldToRequests, no_pause

SLICE_US = 1000.0

STOP_LOOK_NS = 10_000_000  # interval at which a native run checks whether it was stopped

StageRun = Callable[[YieldToRequests | None], tuple[int, int]]
"""Function that runs a stage; returns its begin and end, in nanoseconds of perf_counter."""


class CpuExecutor:
    """Threads of one CPU device; made and used by one thread, for one run at a time.

    Other runs may take place in the pauses of a run, which so has activation memory of its own.
    """

    def __init__(self, threads: int, cpus: Sequence[int] = (), slice_us: float = SLICE_US) -> None:
        """Lead ``threads`` threads on ``cpus`` (empty: any), pausing about every ``slice_us``."""
        assert len(cpus) in (0, threads)
        self.threads = threads
        self.cpus = tuple(cpus)
        self.usable_cores = len(usable_cpus())  # before this thread is pinned to one of them
        self._teams: dict[tuple[int, int], PinnedTeam] = {}  # (first thread, threads)
        self._intra_op = threads
        self._slice_ns = round(slice_us * 1e3)
        self._arena = ActivationMemory()
        self._arena_with_pauses = ActivationMemory()
        set_threads(threads)
        if self.cpus:
            make_pinned_team(self.cpus)

    @property
    def lane_cores(self) -> tuple[int, ...]:
        return self.cpus or usable_cpus()[: self.threads]

    def run(
        self,
        program: Program,
        plan: LanePlan,
        inputs: Arrays,
        pause: YieldToRequests | None = None,
        outputs: Arrays | None = None,
    ) -> Arrays:
        """Run the whole graph; other runs may take place in ``pause``, if there is one.

        ``outputs`` are row-major and share no memory with each other or the inputs. Without them
        the outputs are new arrays, which may share memory with the inputs.
        """
        runner = find_runner()
        if plan.bound is not None and plan.bound.is_of(inputs, outputs) and pause is None:
            check_stopped()
            self._set_intra_op(self.threads)
            return plan.bound.run(_until_stopped())
        plan.bound = None
        env = program.environment(inputs, outputs)
        if runner is None:
            for segment in plan.segments:
                self.run_segment(segment, env)
                if pause is not None:
                    pause()
            arena = self._arena  # of nothing
        else:
            if plan.compiled is None:
                parts = plan.segments, program.kept(), program.kinds()
                plan.compiled = compile_layout(*parts, pause or no_pause)
            arena = self._run_compiled(plan.compiled, env, runner, pause)
        results = program.results(env)
        if outputs is None:
            return {name: _outside(arena, array) for name, array in results.items()}
        if pause is None and runner is not None:
            bind_if_repeated(plan, env, runner, inputs, outputs)
        if elsewhere := {name: a for name, a in results.items() if a is not outputs[name]}:
            copy_into(outputs, elsewhere)
        return outputs

    def run_unit(self, program: Program, unit: int, env: Slots) -> None:
        segment = lay_out_stage(program, [[unit]], self.threads)
        slots = env.copy()
        self.run_segment(segment, slots)
        for slot in program.units[unit].outputs:
            env[slot] = slots[slot]

    def made_up(self, value: Array) -> Callable[[], Array] | None:
        if not holds_floats(value):
            return None
        shape, strides, dtype = value.shape, value.strides, value.dtype
        size = dtype.itemsize + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))

        def make() -> Array:
            elements = np.random.default_rng(0).uniform(-1, 1, size // dtype.itemsize)
            return np.ndarray(shape, dtype, elements.astype(dtype), 0, strides)

        return make if value.size else None

    def stage(self, program: Program, segment: Segment, env: Slots) -> StageRun:
        """Times of native segments exclude the call from Python: a plan has none between stages."""
        runner, slots = find_runner(), env.copy()
        compiled = None
        if runner is not None:
            compiled = compile_layout([segment], frozenset(), program.kinds())

        def run(pause: YieldToRequests | None) -> tuple[int, int]:
            start = perf_counter_ns()
            if compiled is None or runner is None:
                self.run_segment(segment, slots)
                return start, perf_counter_ns()
            moments: list[int] = []
            self._run_compiled(compiled, slots, runner, pause, moments, sum(segment.threads))
            return moments[0], moments[-1]

        return run

    def forget(self) -> None:
        self._arena_with_pauses.free()

    def _run_compiled(
        self,
        compiled: Compiled,
        env: Slots,
        runner: Runner,
        pause: YieldToRequests | None,
        moments: list[int] | None = None,
        threads: int = 0,
    ) -> ActivationMemory:
        """Run on ``threads`` (0: all); ``moments`` gets each part's begin, and the end, in ns."""
        arena = self._arena if pause is None else self._arena_with_pauses
        compiled.place(arena, runner.library)
        threads = threads or self.threads
        slices = _until_stopped() if pause is None else self._slices(pause, threads)
        pause_at = perf_counter_ns() + self._slice_ns
        for part in compiled.parts:
            begun = perf_counter_ns()
            if pause is not None and begun > pause_at:
                pause()
                begun = perf_counter_ns()
                pause_at = begun + self._slice_ns
            check_stopped()
            if isinstance(part, NativeSegment):
                self._set_intra_op(threads)
                if moments:
                    moments.pop()  # the end of the part before: this one's beginning counts
                run_native(part, env, runner, slices, moments)
                continue
            if isinstance(part, Segment):
                self.run_segment(part, env)
                slots = [slot for lane in part.lanes for step in lane for slot in step.unit.outputs]
            else:
                self._set_intra_op(part.threads)
                _run_steps((part,), env, {})
                slots = list(part.unit.outputs)
            if moments is not None:
                moments += [perf_counter_ns()] if moments else [begun, perf_counter_ns()]
            for slot in slots:  # no kind but those known to may leave a view of the arena behind
                array = env[slot]
                if array is not None and slot not in compiled.may_be_views:
                    env[slot] = _outside(arena, array)
        return arena

    def _slices(self, pause: YieldToRequests, threads: int) -> Slices:
        """Slices for runs with pauses: after each the team has its threads again."""

        def pause_and_restore() -> None:
            pause()
            check_stopped()
            self._set_intra_op(threads)

        return Slices(self._slice_ns, pause_and_restore, pause.arrivals)

    def run_segment(self, segment: Segment, env: Slots) -> None:
        if len(segment.lanes) == 1:
            self._set_intra_op(segment.threads[0])
            _run_steps(segment.lanes[0], env, {})
            return
        events = {unit: threading.Event() for unit in segment.signals}
        firsts = [0, *accumulate(segment.threads[:-1])]
        lanes = list(zip(segment.lanes, firsts, segment.threads, strict=True))
        teams = []
        for lane, first, count in lanes[1:] if segment.threads[0] == 1 else lanes:
            team = self._team(first, count)
            team.start(partial(_run_lane, lane, env, events))
            teams.append(team)
        failure: BaseException | None = None
        if segment.threads[0] == 1:
            self._set_intra_op(1)
            try:
                _run_lane(segment.lanes[0], env, events)
            except BaseException as error:
                failure = error
        for team in teams:
            late = team.join()
            failure = failure or late
        if failure is not None:
            raise failure
        for slot in segment.releases:
            env[slot] = None

    def close(self) -> None:
        for team in self._teams.values():
            team.close()
        self._teams.clear()

    def _set_intra_op(self, threads: int) -> None:
        if threads != self._intra_op:
            self._intra_op = threads
            set_threads(threads)

    def _team(self, first: int, count: int) -> PinnedTeam:
        if (first, count) not in self._teams:
            cpus = self.cpus[first : first + count]
            self._teams[first, count] = PinnedTeam(f"lane-{first}+{count}", count, cpus)
        return self._teams[first, count]


def _run_lane(steps: Sequence[Step], env: Slots, events: Mapping[int, threading.Event]) -> None:
    """Run one of several lanes; a failure sets all events, so that no lane waits for this one."""
    try:
        _run_steps(steps, env, events)
    except BaseException:
        for event in events.values():
            event.set()
        raise


def _run_steps(steps: Sequence[Step], env: Slots, events: Mapping[int, threading.Event]) -> None:
    for step in steps:
        check_stopped()
        for other in step.waits:
            events[other].wait()
        unit = step.unit
        results = run_kernel(unit.kernel, step.threads, [env[slot] for slot in unit.inputs])
        for slot, array in zip(unit.outputs, results, strict=len(results) > 1):
            env[slot] = array
        for slot in step.releases:
            env[slot] = None
        for waited in step.signals:
            events[waited].set()


def run_kernel(kernel: Kernel, threads: int, operands: Slots) -> Sequence[Array]:
    if kernel.run is None:
        recipe, launch = kernel.launch_on(threads)
        given = [laid(operands[position], images=images) for position, images in recipe.operands]
        return launch([*map(address_of, given)])
    result = kernel.run(*operands)
    return result if isinstance(result, tuple) else (result,)


def _outside(arena: ActivationMemory, array: Array) -> Array:
    return array.copy(order="K") if arena.holds(array) else array


def _until_stopped() -> Slices | None:
    """Slices of a run without pauses, which ends when the calling thread's run is to end."""
    signal = stop_signal.get()
    if signal is None:
        return None
    return Slices(STOP_LOOK_NS, signal.check, signal.descriptor.fileno())
