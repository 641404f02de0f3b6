"""One version of a model that answers requests, and the executables that run them.

    ModelReplica
      ├── scheduled: (shape class, batch size) ──> Executable of a schedule's plan, by contest
      │                                                            (plan_contest.py)
      └── all else: (shape class, batch size) ──> Executable                     (other_shapes.py)

A *shape class* is everything about a request's inputs that an executable is specialised to,
except the number of rows: extents, and the content of static inputs. Only requests of one class
share a batch. The main class that is scheduled has its executables ready, first sequential ones;
others have them once a schedule of theirs serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from braid.compiler.imported_model import ImportedModel
from braid.core.background import log_unexpected
from braid.core.errors import BraidError, DeviceOutOfMemory, InvalidArtefact, PreconditionFailed
from braid.core.inputs import ShapeClass
from braid.core.padding import length_of, refused
from braid.core.program import PlanToRun, ProgramKey, to_run
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import ContestTable, Schedule, ScheduleKey
from braid.core.tensor import TensorType, has_open_extents
from braid.server.devices.device import Device
from braid.server.devices.executables import Executable
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.lengths import Lengths, ManyRows, NoRows, elements_of
from braid.server.inference.other_shapes import OtherShapes
from braid.server.inference.plan_contest import ContestEvents, PlanContest
from braid.server.inference.shape_latencies import ShapeLatencies, ShapeTimes
from braid.server.inference.strikes import Strikes
from braid.server.store.interface import Interface, reshapes
from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import BatchPolicy

if TYPE_CHECKING:
    from braid.server.inference.requests import CheckedRequest

log = logging.getLogger("braid.replica")

MAX_TABLES = 64
"""Lanes whose latencies are remembered."""

MANY = 4
"""A request of more rows than this many of the largest batches may run at once in the session."""

MOST_ROWS = 4096
"""Rows of such a run."""


def _mark(schedule: Schedule) -> Hashable:
    """What tells a schedule from another one of the same key, as far as serving goes."""
    record, ids = schedule.provenance, (schedule.plan_id, schedule.side_by_side_id)
    facts = record.created, record.measured_us, record.promoted, record.is_decided, record.tolerance
    return *ids, *facts


@dataclass(slots=True, eq=False)
class _Plans:
    """What runs the batches of one size of a scheduled class."""

    first: Executable
    given: Schedule | None  # None: the sequential plan runs
    contest: PlanContest | None = None  # of the schedule's candidates
    beside: Executable | None = None  # side by side, if it pays

    @property
    def schedule(self) -> Schedule | None:
        return self.given if self.contest is None else self.contest.schedule

    async def close(self) -> list[Executable]:
        """End the contest; returns all executables."""
        executables = [self.first] if self.contest is None else await self.contest.close()
        return executables if self.beside is None else [*executables, self.beside]


class ModelReplica:
    """Model version on one device, loaded until ``close``. Belongs to the event loop."""

    def __init__(self, model: ModelVersion, imported: ImportedModel, device: Device) -> None:
        """Count as a user of the loaded model. InvalidRequest: a shape or padding does not fit."""
        graph, report = imported.graph, imported.report
        self.model = model
        self.name = model.name
        self.version = model.version
        self.digest = imported.digest
        self.inputs: Mapping[str, TensorType] = graph.inputs
        self.outputs = tuple(graph.outputs)
        self.output_specs = {name: graph.spec(value) for name, value in graph.outputs.items()}
        self.warnings, self.rows = report.warnings, report.rows
        self.padding = imported.padding
        self.guessed: Mapping[str, int] = imported.guessed
        self.batched = report.batch is not None
        self.output_axes: Mapping[str, int | None] = report.batch.outputs if report.batch else {}
        self.static_inputs = report.static_inputs
        self.device = device
        self.batch_sizes = imported.batch_sizes  # to form, in rows, ascending; more may come
        self.policy = BatchPolicy()
        self.strikes = Strikes()  # of the version on all devices
        self.metadata = report.metadata
        self.declare(Interface())
        shapes = imported.at_shapes()
        self.scheduled = {one.shapes_text: one.shape_class for one in shapes}  # by the text
        self.schedule_keys = _keys(shapes, device.device_key, lambda one: one.batch_sizes)
        self.larger_keys = _keys(shapes, device.device_key, lambda one: one.larger_sizes)
        self.profiled = self.scheduled[shapes[0].shapes_text]  # the main class
        self.shape_times = ShapeTimes()
        self.lengths = Lengths(imported.padded_axis, self.profiled, self.shape_times)
        self.chosen: dict[ScheduleKey, Schedule] = {}  # that were given last
        self.seen_shapes: dict[Hashable, tuple[ShapeClass, int]] = {}  # of requests that were right
        self.known_classes = {one: one for one in self.scheduled.values()}
        self._latencies: OrderedDict[Hashable, LatencyTable] = OrderedDict()  # by lane
        self._shape_tables = WeakSet[ShapeLatencies]()  # of lanes that are in use, too
        self._plans: dict[tuple[ShapeClass, int], _Plans] = {}
        self._following = asyncio.Lock()
        self._followed = ("", self.policy.explore_share)  # plan pinned, and share
        self.on_decided: Callable[[ModelReplica, Schedule], object] = lambda replica, schedule: None
        specs = graph.inputs, self.output_specs
        self.other_shapes = OtherShapes(device, specs, self._to_run, self._retire)
        self._opening_beside: asyncio.Task[None] | None = None
        self._is_onnxruntime_right = imported.is_onnxruntime_right
        self._takes_any_shape = bool(report.static_inputs) or has_open_extents(graph.inputs)
        self._takes_rows = imported.takes_rows  # together
        self._may_open_for_rows = imported.takes_rows and imported.is_onnxruntime_right
        self._opening: asyncio.Task[None] | None = None
        self._in_use: dict[Executable, int] = {}  # by batches being formed or running
        self._retired: set[Executable] = set()  # replaced, but still in use
        self._releasing: asyncio.Task[None] | None = None
        self._is_closed = False
        if imported.padding_failure:
            self.forbid_padding(imported.padding_failure)
        device.keep(self.digest)

    def declare(self, interface: Interface) -> None:
        """Take what a configuration declares; a reshape that does not fit the model is left out."""
        self.interface, has_batch = interface, interface.has_batch
        self.reshaped_inputs = reshapes(interface.inputs, self.inputs, has_batch)
        self.reshaped_outputs = reshapes(interface.outputs, self.output_specs, has_batch)

    async def close(self) -> None:
        """Release the executables and the model. No batch uses them any more."""
        self._is_closed = True
        opening = [task for task in (self._opening, self._opening_beside) if task is not None]
        if opening:
            await asyncio.wait(opening)
        others = await self.other_shapes.close()
        plans = [ready for one in self._plans.values() for ready in await one.close()]
        await self.device.let_go(self.digest, {*plans, *self._retired, *others})

    def lane_of(self, request: CheckedRequest, waiting: int = 0) -> Hashable:
        """What requests must have in common to share batches; ``waiting`` came before it."""
        if request.is_empty:
            return NoRows(request.shape_class)
        if request.shape_class.is_alone:
            return request.shape_class
        lane, unpadded = self._lanes_of(request)
        if request.rows > MANY * self.batch_sizes[-1] and self._runs_at_once(request, lane):
            return ManyRows(request.shape_class)
        if not waiting or self.shape_times.beside == 1:
            return lane
        return unpadded if self._is_cheaper_beside(request, waiting, lane) else lane

    def _runs_at_once(self, request: CheckedRequest, lane: Hashable) -> bool:
        """Whether the session for any shape answers a request of many rows sooner than batches do.

        Has it opened, if there is none yet.
        """
        if self._may_open_for_rows:
            self._may_open_for_rows = False
            self._opening = asyncio.create_task(self._open_session(request.rows))
            self._opening.add_done_callback(log_unexpected)
        if not self.shape_times.is_any_size:
            return False
        at_once_s = self.shape_times.expected_s(elements_of(lane) * request.rows)
        return at_once_s is None or at_once_s < self.latencies(lane).clearing_s(request.rows)

    def _lanes_of(self, request: CheckedRequest) -> tuple[Hashable, Hashable]:
        """Return the lane of a request for which nothing waits, and the one without a schedule."""
        if self.lengths.axis is None or self.lengths.failure:
            return request.shape_class, request.shape_class
        has_session = self.other_shapes.has_session
        bucket = self.lengths.scheduled_for(request, has_session=has_session)
        # Without a session, each length of a batch would have to be prepared.
        unpadded = self.lengths.lane_of(request) if has_session else request.shape_class
        return unpadded if bucket is None else bucket, unpadded

    def _is_cheaper_beside(self, request: CheckedRequest, waiting: int, lane: Hashable) -> bool:
        """Whether a request takes less of a busy device beside another one than in its lane.

        What it takes either way is learned: it decides how the requests of a crowd run.
        """
        times, table = self.shape_times, self.latencies(lane)
        in_session = times.costs_s(elements_of(request.shape_class))
        if isinstance(table, ShapeLatencies):
            times.weigh(*in_session)
            return False
        rows = waiting + request.rows
        whole_s = table.row_s(rows, side_by_side=False)
        beside_s = table.row_s(rows, side_by_side=True)
        times.weigh(whole_s, min(beside_s, in_session.beside_s))
        in_lane_s = min(beside_s, whole_s + times.idle_s)
        return bool(times.goes_beside) and in_session.beside_s < in_lane_s

    def latencies(self, lane: Hashable) -> LatencyTable:
        table = self._latencies.get(lane)
        if table is None:
            table = self._latencies[lane] = self._new_table(lane)
            if len(self._latencies) > MAX_TABLES:
                self._latencies.popitem(last=False)
        self._latencies.move_to_end(lane)
        return table

    def _new_table(self, lane: Hashable) -> LatencyTable:
        if lane == self.profiled:
            return LatencyTable(self.batch_sizes, self.shape_times)
        if _is_alone(lane):
            return LatencyTable((1,))
        if sizes := [size for of, size in self._plans if of == lane]:
            return LatencyTable(sizes, self.shape_times)
        of_rows = (1, MOST_ROWS) if isinstance(lane, ManyRows) else self.batch_sizes
        table = ShapeLatencies(of_rows, self.shape_times, elements_of(lane))
        self._shape_tables.add(table)
        return table

    def expect(self, batch_size: int, latency_us: float, of: ShapeClass | None = None) -> None:
        """Expect this latency of a batch of a scheduled class until batches show another.

        None: of the main one. Then batches of this size are formed from now on, of that class and
        of all that have no schedules.
        """
        if of in (None, self.profiled) and batch_size not in self.batch_sizes:
            self.batch_sizes = tuple(sorted((*self.batch_sizes, batch_size)))
            others = {shape_class for shape_class, _ in self._plans} - {self.profiled}
            for lane, table in self._latencies.items():
                if lane not in others and not _is_alone(lane):
                    table.add(batch_size)
        self.latencies(of or self.profiled).expect(batch_size, latency_us / 1e6)

    def forbid_padding(self, reason: str) -> None:
        """Pad no request that comes from now on; those that wait already are.

        The scheduled lengths stay scheduled.
        """
        self.lengths.failure = reason
        self.padding = refused(self.padding, reason)

    def tolerance_at(self, shape_class: ShapeClass) -> float:
        """Maximum allowed relative error, or 0.0 if the shape class has no schedule."""
        texts = {text for text, scheduled in self.scheduled.items() if scheduled == shape_class}
        records = (one.provenance for key, one in self.chosen.items() if key.shapes in texts)
        return max((record.tolerance or 0.0 for record in records), default=0.0)

    @property
    def scheduled_lengths(self) -> tuple[int, ...]:
        axis, shapes = self.lengths.axis, self.scheduled.values()
        return tuple(sorted({length_of(one, axis) for one in shapes})) if axis else ()

    def has_chosen(self, schedule: Schedule) -> bool:
        """Whether a schedule, or one that serves as it does, was given last."""
        chosen = self.chosen.get(schedule.key)
        return chosen is not None and _mark(chosen) == _mark(schedule)

    def is_main(self, schedule: Schedule) -> bool:
        return self.scheduled.get(schedule.key.shapes) == self.profiled

    async def use_plan(
        self,
        batch_size: int,
        schedule: Schedule | None = None,
        of: ShapeClass | None = None,
    ) -> None:
        """Prepare a plan and swap it in: batches of a scheduled class formed from now on use it.

        Without a schedule, the sequential plan, which computes in FP32. ``of``: None means the
        main class.
        """
        key = (of or self.profiled, batch_size)
        given, is_pinned = schedule, False
        if schedule is not None and (is_pinned := self.is_pinned(schedule)):
            schedule = schedule.led_by(self.policy.plan)
        ready = await self.device.prepare(self._to_run(*key, schedule))
        if self._is_closed or key[0] not in self.scheduled.values():
            await self.device.release(ready)
            return
        old, new = self._plans.get(key), _Plans(ready, given)
        self._plans[key] = new
        if given is not None and given.others and not is_pinned and self.policy.explore_share:
            new.contest = self._contest(key, given, ready)
        if key[0] != self.profiled:
            if isinstance(self._latencies.get(key[0]), ShapeLatencies):
                del self._latencies[key[0]]  # of the session: a lane in the queue keeps it
            self.latencies(key[0]).add(batch_size)
        for executable in [] if old is None else await old.close():
            await self._retire(executable)
        await self._use_beside(key, new, schedule)
        if schedule is not None and batch_size == self.batch_sizes[0]:
            self.lengths.schedule_serves(key[0], schedule)
            self.lengths.keep_apart({shape_class for shape_class, _ in self._plans})
        if schedule is not None:
            await self._open_any_shape(schedule)

    def _contest(
        self, key: tuple[ShapeClass, int], schedule: Schedule, ready: Executable
    ) -> PlanContest:
        contest = PlanContest(
            schedule,
            ready,
            ContestEvents(
                lambda led: self.device.prepare(self._to_run(*key, led)),
                self._retire,
                lambda led: self.on_decided(self, led),
            ),
            self.device.shape_memory,
            self.policy.explore_share,
        )
        if not schedule.provenance.is_decided:
            contest.begin()
        return contest

    def is_pinned(self, schedule: Schedule) -> bool:
        names = [one.name for one in schedule.candidates if schedule.provenance.promoted]
        return self.policy.plan in names

    @property
    def contests(self) -> Sequence[tuple[ShapeClass, int, PlanContest]]:
        plans = self._plans.items()
        return [(*key, one.contest) for key, one in plans if one.contest is not None]

    @property
    def schedules(self) -> Sequence[Schedule]:
        schedules = (one.schedule for one in self._plans.values())
        return [schedule for schedule in schedules if schedule is not None]

    def contest_of(self, shape_class: ShapeClass | None, batch_size: int) -> PlanContest | None:
        """Return the contest of the plans for a batch; None: one plan runs it."""
        one = None if shape_class is None else self._plans.get((shape_class, batch_size))
        return None if one is None else one.contest

    def contest_table(self, schedule: Schedule) -> ContestTable:
        """Live state of the contest of a schedule that serves here; else as it is stored."""
        of = self.scheduled.get(schedule.key.shapes)
        contest = self.contest_of(of, schedule.key.batch_size)
        if contest is not None and contest.schedule.key == schedule.key:
            return contest.table()
        if self.is_pinned(schedule):
            return replace(schedule.led_by(self.policy.plan).table, is_pinned=True)
        return schedule.table

    async def follow_policy(self) -> None:
        """Swap plans that the policy pins, or pins no more."""
        async with self._following:
            wanted = self.policy.plan, self.policy.explore_share
            if wanted == self._followed:
                return
            for (shape_class, batch_size), one in list(self._plans.items()):
                if one.schedule is not None:
                    await self.use_plan(batch_size, one.schedule, shape_class)
            self._followed = wanted

    async def _use_beside(
        self, key: tuple[ShapeClass, int], plans: _Plans, schedule: Schedule | None
    ) -> None:
        """Let batches of one size run side by side as a schedule says, or not any more."""
        runs = None if schedule is None else schedule.provenance.side_by_side
        shape_class, batch_size = key
        table = self.latencies(shape_class)
        table.forget_beside(batch_size)
        if schedule is None or runs is None or not runs.pays or not self.policy.side_by_side:
            return
        to_run = replace(
            self._to_run(shape_class, batch_size, schedule),
            plan=None,
            plan_id=schedule.side_by_side_id,
            runtime=runs.runtime,
            side_by_side=runs.count,
        )
        try:
            ready = await self.device.prepare(to_run)
        except (DeviceOutOfMemory, PreconditionFailed) as error:  # the plan serves without it
            facts = {"model": self.name, "version": self.version, "reason": str(error)}
            log.error("batches do not run side by side", extra=facts)
            return
        if self._is_closed or self._plans.get(key) is not plans:
            await self.device.release(ready)
            return
        plans.beside = ready
        table.expect(batch_size, runs.latency_us / 1e6, runs.count)

    async def _open_any_shape(self, schedule: Schedule) -> None:
        """Have other shapes answered by ONNX Runtime, unless it failed or erred in a schedule.

        Of a schedule without it, as ``planner`` may ask for, the import decides.
        """
        was_right = schedule.was_right_in(ONNXRUNTIME)
        if was_right is None and not self._is_onnxruntime_right:
            return
        if was_right is False:
            self._may_open_for_rows = False
            await self.other_shapes.shut()
            self._has_ways(is_any_size=False, beside=1)
        if self._takes_any_shape:
            saved = schedule.part_saved_from(ONNXRUNTIME)
            await self._open_session(self.batch_sizes[0], saved)

    async def _open_session(self, rows: int, part_saved: float | None = None) -> None:
        if not self.other_shapes.may_open:
            return
        program = self._to_run(self.profiled, rows).program
        to_run = PlanToRun(program, plan_id=ONNXRUNTIME, runtime=ONNXRUNTIME, any_shape=True)
        try:
            await self.other_shapes.open(to_run, part_saved)
        except (DeviceOutOfMemory, PreconditionFailed, InvalidArtefact) as error:
            facts = {"model": self.name, "version": self.version, "reason": str(error)}
            log.warning("new shapes are prepared in requests", extra=facts)
        else:
            self._has_ways(is_any_size=self._takes_rows, beside=1)

    def _has_ways(self, *, is_any_size: bool, beside: int) -> None:
        """Let batches without schedules be formed as what is for any shape can run them."""
        times = self.shape_times
        times.is_any_size, times.beside = is_any_size, beside
        for table in self._shape_tables:
            table.adopt()

    async def open_beside(self) -> None:
        """Have other shapes answered side by side as well, one on each thread of the device."""
        count = self.device.threads
        try:
            await self.other_shapes.open_beside(count)
        except BraidError as error:
            facts = {"model": self.name, "version": self.version, "reason": str(error)}
            log.info("other shapes do not run side by side", extra=facts)
        else:
            if self.other_shapes.has_session:
                self._has_ways(is_any_size=self._takes_rows, beside=count)

    def answer_bytes(
        self, shape_class: ShapeClass, rows: int, outputs: Sequence[str]
    ) -> int | None:
        """Return the bytes of some outputs for ``rows``; None: the class is not prepared yet."""
        for batch_size in self.batch_sizes:
            ready = self.ready(shape_class, batch_size)
            if ready is not None:
                size_bytes = ready.heap_bytes
                for name in outputs:
                    of_batch = ready.layout.outputs[name].size_bytes
                    is_cut = self.output_axes.get(name) is not None
                    size_bytes += rows * of_batch // batch_size if is_cut else of_batch
                return size_bytes
        return None

    def ready(self, shape_class: ShapeClass, batch_size: int, beside: int = 1) -> Executable | None:
        """Return the executable for batches of one size; None: it has to be prepared.

        With ``beside``, the one of so many batches side by side, as long as there is one.
        """
        return self.ready_and_contest(shape_class, batch_size, beside)[0]

    def ready_and_contest(
        self, shape_class: ShapeClass, batch_size: int, beside: int = 1
    ) -> tuple[Executable | None, PlanContest | None]:
        """Do as ``ready``, with the contest that may put another plan in its place."""
        one = self._plans.get((shape_class, batch_size))
        if one is None:
            return self.other_shapes.ready((shape_class, batch_size), beside), None
        if beside > 1 and (ready := one.beside) and ready.to_run.side_by_side == beside:
            return ready, None
        contest = one.contest
        return (one.first, None) if contest is None else (contest.in_force, contest)

    async def executable(
        self, shape_class: ShapeClass, batch_size: int, beside: int = 1
    ) -> Executable:
        """Executable for batches of one size, made now for a new class; or InvalidRequest."""
        ready = self.ready(shape_class, batch_size, beside)
        return ready or await self.other_shapes.prepared_now((shape_class, batch_size))

    def ran(
        self, shape_class: ShapeClass, batch_size: int, ready: Executable, seconds: float
    ) -> None:
        key, beside = (shape_class, batch_size), ready.to_run.side_by_side
        if (one := self._plans.get(key)) is not None:
            if beside == 1 and one.contest is not None:
                one.contest.took(ready, 1e6 * seconds)
            return
        opening = self._opening_beside
        if opening is None or opening.done():  # it takes cores from what runs meanwhile
            self.shape_times.observe(batch_size * elements_of(shape_class), seconds, beside)
        if beside > 1:
            return
        self.other_shapes.ran(key, ready, seconds)
        is_crowded = ready.to_run.any_shape and sum(self._in_use.values()) > 1
        if not is_crowded or self._opening_beside is not None or self.device.threads == 1:
            return
        if self.policy.side_by_side and self.other_shapes.pays_beside(seconds):
            self._opening_beside = asyncio.create_task(self.open_beside())
            self._opening_beside.add_done_callback(log_unexpected)

    def _to_run(
        self, shape_class: ShapeClass, batch_size: int, schedule: Schedule | None = None
    ) -> PlanToRun:
        """Return the plan for batches of one size: a schedule's, or the sequential one."""
        program = shape_class.program(self.digest, batch_size, batched=self.batched)
        return to_run(program, schedule)

    def program(
        self, batch_size: int, schedule: Schedule | None = None, of: ShapeClass | None = None
    ) -> ProgramKey:
        """Return the program that batches of a scheduled class run; None: as without schedule."""
        return self._to_run(of or self.profiled, batch_size, schedule).program

    async def _retire(self, ready: Executable) -> None:
        """Release an executable now, or when the last batch that uses it has ended."""
        if ready in self._in_use:
            self._retired.add(ready)
        else:
            await self.device.release(ready)

    def has_plan(self, batch_size: int, of: ShapeClass) -> bool:
        return (of, batch_size) in self._plans

    def begin_use(self, ready: Executable) -> None:
        """Keep an executable from being released until ``end_use``: a batch uses it."""
        self._in_use[ready] = self._in_use.get(ready, 0) + 1

    def end_use(self, ready: Executable) -> None:
        self._in_use[ready] -= 1
        if not self._in_use[ready]:
            del self._in_use[ready]
            if ready in self._retired:
                self._retired.discard(ready)
                self._releasing = asyncio.create_task(self.device.release(ready))


def _is_alone(lane: Hashable) -> bool:
    return isinstance(lane, ShapeClass) and lane.is_alone


def _keys(
    shapes: Sequence[ImportedModel],
    device_key: str,
    sizes: Callable[[ImportedModel], Sequence[int]],
) -> tuple[ScheduleKey, ...]:
    """Keys of the schedules that a version can have on a device, those of the main shape first."""
    return tuple(
        one.schedule_key(device_key, size)
        for one in shapes
        if one.is_planned
        for size in sizes(one)
    )
