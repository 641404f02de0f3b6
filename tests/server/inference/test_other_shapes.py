"""What answers shapes that were not scheduled: the rule, on a device that is not there."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from braid.core.errors import (
    BraidError,
    DeviceOutOfMemory,
    InvalidRequest,
    PreconditionFailed,
    WorkerRestarting,
)
from braid.core.inputs import ShapeClass
from braid.core.program import PlanToRun, ProgramKey
from braid.core.runtimes import ONNXRUNTIME
from braid.core.shapes import ShapeMemory
from braid.core.tensor import TensorType
from braid.engine.link.shared_memory import slot_layout
from braid.server.devices.device import Device
from braid.server.devices.executables import Executable
from braid.server.inference.other_shapes import LEAST_BESIDE_S, OtherShapes
from tests.server.inference.batching import settle

MIB = 1 << 20
X, Y = TensorType("FP32", ("batch", "length")), TensorType("FP32", ("batch", "length", 2))


class FakeDevice:
    """Prepares what is asked for; what it makes for a class has ``size_bytes``."""

    def __init__(self, limit_bytes: int = 100 * MIB, size_bytes: int = MIB) -> None:
        self.shape_memory = ShapeMemory(limit_bytes)
        self.size_bytes = size_bytes
        self.work_s = 0.2
        self.prepared: list[PlanToRun] = []
        self.released: list[int] = []
        self.asked = 0
        self.error: BraidError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def prepare(self, to_run: PlanToRun, like: Executable | None = None) -> Executable:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.prepared.append(to_run)
        layout = slot_layout(to_run.program.specs, {})
        ready = Executable(len(self.prepared), to_run, layout, size_bytes=self.size_bytes)
        return replace(ready, work_s=self.work_s)

    def at_shapes(
        self, ready: Executable, program: ProgramKey, outputs: Mapping[str, TensorType]
    ) -> Executable:
        layout = slot_layout(program.specs, outputs)
        return replace(ready, to_run=replace(ready.to_run, program=program), layout=layout)

    async def release(self, ready: Executable) -> None:
        self.released.append(ready.number)


def key(length: int, size: int = 1) -> tuple[ShapeClass, int]:
    return ShapeClass((("x", TensorType("FP32", (1, length))),)), size


def to_run(shape_class: ShapeClass, size: int) -> PlanToRun:
    ((name, spec),) = shape_class.inputs
    return PlanToRun(ProgramKey("d", ((name, TensorType("FP32", (size, *spec.shape[1:]))),)))


def shapes_on(device: FakeDevice) -> OtherShapes:
    specs = {"x": X}, {"y": Y}
    return OtherShapes(cast(Device, device), specs, to_run, device.release)


async def with_session(device: FakeDevice, part_saved: float | None = None) -> OtherShapes:
    shapes = shapes_on(device)
    tried = replace(to_run(*key(8)), runtime=ONNXRUNTIME, any_shape=True)
    await shapes.open(tried, part_saved)
    device.prepared.clear()
    return shapes


async def run(shapes: OtherShapes, at: tuple[ShapeClass, int], seconds: float) -> Executable:
    """A batch that takes so long in the session, and half of it otherwise."""
    ready = shapes.ready(at) or await shapes.prepared_now(at)
    shapes.ran(at, ready, seconds if ready.to_run.any_shape else seconds / 2)
    await settle()
    return ready


async def test_a_new_shape_is_answered_by_the_session_and_nothing_is_prepared() -> None:
    device = FakeDevice()
    shapes = await with_session(device)

    lengths = range(1, 40)
    ready = [await run(shapes, key(length, 2), 0.01) for length in lengths]

    assert device.prepared == []
    assert shapes.prepared == 0
    for length, executable in zip(lengths, ready, strict=True):
        assert executable.layout.inputs["x"].shape == (2, length)
        assert executable.layout.outputs["y"].shape == (2, length, 2)


async def test_a_shape_that_comes_often_gets_an_executable_beside_its_requests() -> None:
    device = FakeDevice()
    shapes = await with_session(device)
    device.gate.clear()

    for _ in range(200):
        assert (await run(shapes, key(5), 0.01)).to_run.any_shape
    device.gate.set()
    await settle()
    ran = [await run(shapes, key(5), 0.01) for _ in range(30)]

    assert shapes.prepared == 1
    are_of_session = [executable.to_run.any_shape for executable in ran]
    assert are_of_session == [False, True] * 5 + [False] * 20


async def test_the_more_a_schedule_saved_the_sooner_a_shape_gets_an_executable() -> None:
    runs = []
    for part_saved in (0.8, 0.1, -0.5):
        device = FakeDevice()
        shapes = await with_session(device, part_saved)
        runs.append(0)
        while not device.prepared:
            await run(shapes, key(5), 0.125)
            runs[-1] += 1

    assert runs == [2, 16, 80]


async def _new_shapes(shapes: OtherShapes, lengths: range, session_s: float = 0.1) -> list[bool]:
    """Whether an own executable answered the first request of each length."""
    ran = [await run(shapes, key(length), session_s) for length in lengths]
    return [not executable.to_run.any_shape for executable in ran]


async def test_new_shapes_wait_for_executables_that_save_more_than_they_cost_at_once() -> None:
    device = FakeDevice()
    shapes = await with_session(device, 0.4)
    device.work_s = 0.01

    before = await _new_shapes(shapes, range(100, 120))
    measured = len(device.prepared)
    after = await _new_shapes(shapes, range(200, 300))

    assert not any(before)
    assert measured == 0
    assert device.prepared
    assert sum(after) >= 60
    assert sum(after[-40:]) == 35  # some ask the session what it takes now


@pytest.mark.parametrize(("work_s", "saved"), [(0.06, 0.5), (0.03, 0.02)])
async def test_new_shapes_wait_for_none_that_costs_more_than_one_run_saves(
    work_s: float, saved: float
) -> None:
    device = FakeDevice()
    shapes = await with_session(device, saved)
    device.work_s = work_s

    assert not any(await _new_shapes(shapes, range(100, 300)))
    assert 1 <= len(device.prepared) <= 12  # that showed what they cost


async def test_what_first_runs_do_not_save_is_not_waited_for_any_more() -> None:
    device = FakeDevice()
    shapes = await with_session(device, 0.5)
    device.work_s = 0.01
    await _new_shapes(shapes, range(100, 300, 2))
    assert shapes.ready(key(101)) is None

    for length in range(151, 191, 2):
        at = key(length)
        ready = shapes.ready(at) or await shapes.prepared_now(at)
        shapes.ran(at, ready, 0.1)  # whatever runs it
        await settle()

    assert (last := shapes.ready(key(203))) is not None
    assert last.to_run.any_shape


@pytest.mark.parametrize("error", [DeviceOutOfMemory("full"), WorkerRestarting("died")])
async def test_the_session_answers_who_waited_for_an_executable_in_vain(error: BraidError) -> None:
    device = FakeDevice()
    shapes = await with_session(device, 0.5)
    device.work_s = 0.01
    await _new_shapes(shapes, range(100, 200))
    device.error, at = error, key(201)
    assert shapes.ready(at) is None

    answered = await shapes.prepared_now(at)

    assert answered.to_run.any_shape
    assert shapes.ready(at) is answered
    assert not device.shape_memory.is_preparing


async def test_one_executable_at_a_time_is_prepared_beside() -> None:
    device = FakeDevice()
    one, other = await with_session(device), await with_session(device)
    device.gate.clear()
    for shapes in (one, other):
        await run(shapes, key(5), 100.0)

    device.gate.set()
    await settle()

    assert len(device.prepared) == 1
    await run(other, key(5), 1.0)
    assert len(device.prepared) == 2


async def test_an_executable_that_is_not_faster_is_dropped_for_good() -> None:
    device = FakeDevice()
    shapes, at = await with_session(device), key(5)
    await run(shapes, at, 100.0)
    own = shapes.ready(at)
    assert own is not None
    assert not own.to_run.any_shape

    for _ in range(20):
        ready = shapes.ready(at)
        assert ready is not None
        shapes.ran(at, ready, 100.1 if ready is own else 100.0)
        await settle()

    assert (last := shapes.ready(at)) is not None
    assert last.to_run.any_shape
    assert device.released == [own.number]
    assert (shapes.prepared, shapes.dropped) == (1, 1)
    for _ in range(50):
        await run(shapes, at, 100.0)
    assert shapes.prepared == 1


@pytest.mark.parametrize(
    ("part", "load", "is_kept"), [(0.6, 2.0, True), (1.2, 0.5, False), (0.99, 1.0, False)]
)
async def test_an_executable_is_judged_on_the_machine_as_it_is_now(
    part: float, load: float, *, is_kept: bool
) -> None:
    device = FakeDevice()
    shapes, at = await with_session(device), key(5)
    device.gate.clear()
    for _ in range(20):
        await run(shapes, at, 1.0)
    device.gate.set()
    await settle()

    for _ in range(20):  # what else runs there has changed
        ready = shapes.ready(at)
        assert ready is not None
        shapes.ran(at, ready, load if ready.to_run.any_shape else load * part)
        await settle()

    last = shapes.ready(at)
    assert last is not None
    assert last.to_run.any_shape is not is_kept


@pytest.mark.parametrize(
    ("error", "tries"), [(DeviceOutOfMemory("full"), 1), (WorkerRestarting("died"), 50)]
)
async def test_a_preparation_beside_that_fails_is_tried_again_if_that_may_help(
    error: BraidError, tries: int
) -> None:
    device = FakeDevice()
    shapes = await with_session(device)
    device.error = error

    for _ in range(50):
        assert (await run(shapes, key(5), 100.0)).to_run.any_shape

    assert device.asked == 1 + tries
    assert shapes.prepared == 0


async def test_what_was_dropped_for_others_is_prepared_again_once_it_comes_often() -> None:
    device = FakeDevice(limit_bytes=MIB)
    shapes = await with_session(device)
    for length in (5, 6, 5):
        for _ in range(20):
            ready = await run(shapes, key(length), 100.0)
        assert not ready.to_run.any_shape

    assert (shapes.prepared, shapes.dropped) == (3, 2)


async def test_a_shape_that_the_session_refused_is_left_to_its_own_executable() -> None:
    device = FakeDevice()
    shapes, at = await with_session(device), key(5)
    own = await shapes.own(at)

    shapes.refuse(at, PreconditionFailed("no"))

    assert shapes.ready(at) is own
    assert (await run(shapes, key(6), 0.01)).to_run.any_shape


async def test_a_session_that_is_shut_is_given_back_and_not_opened_again() -> None:
    device = FakeDevice()
    shapes = await with_session(device)
    assert not shapes.may_open

    await shapes.shut()

    assert shapes.ready(key(3)) is None
    assert not shapes.may_open
    assert len(device.released) == 1


@pytest.mark.parametrize("length", [0, 3])
async def test_without_a_session_and_without_elements_a_shape_is_prepared(length: int) -> None:
    device = FakeDevice()
    shapes = await with_session(device) if length == 0 else shapes_on(device)

    assert shapes.ready(key(length)) is None
    first = await shapes.own(key(length))

    assert shapes.ready(key(length)) is first
    assert shapes.prepared == 1


async def test_a_preparation_that_fails_is_tried_again_by_the_next_request() -> None:
    device = FakeDevice()
    shapes = shapes_on(device)
    device.error = WorkerRestarting("died")
    with pytest.raises(WorkerRestarting):
        await shapes.own(key(3))
    device.error = None

    await shapes.own(key(3))

    assert shapes.prepared == 1


async def test_a_shape_that_the_model_cannot_run_is_prepared_once_and_then_refused() -> None:
    device = FakeDevice()
    shapes = await with_session(device)
    device.error = InvalidRequest("a table has 64 positions")

    for _ in range(3):
        with pytest.raises(InvalidRequest, match="a table has 64 positions"):
            await shapes.own(key(70, 2))

    assert device.asked == 2  # the session, and the shape
    device.error = None
    await shapes.own(key(64, 2))


async def test_side_by_side_the_session_pays_once_runs_have_waited_for_others() -> None:
    device = FakeDevice()
    shapes = await with_session(device)
    assert shapes.ready(key(5), 2) is shapes.ready(key(5))

    for _ in range(10_000):
        assert not shapes.pays_beside(LEAST_BESIDE_S / 2)
    assert shapes.pays_beside(10.0)
    await shapes.open_beside(2)

    (opened,) = device.prepared
    ready = shapes.ready(key(5), 2)
    assert ready is not None
    assert (opened.side_by_side, ready.to_run.side_by_side) == (2, 2)
    assert ready.layout.inputs["x"].shape == (1, 5)
    assert shapes.ready(key(5), 2) is ready
    shapes.refuse(key(5), PreconditionFailed("no"))
    assert shapes.ready(key(5), 2) is None
    assert len(await shapes.close()) == 2


async def test_what_is_kept_is_bounded_in_bytes_and_the_least_recently_used_goes() -> None:
    device = FakeDevice(limit_bytes=10 * MIB, size_bytes=3 * MIB)
    shapes = shapes_on(device)
    for length in (1, 2, 3):
        await shapes.own(key(length))
    shapes.ready(key(1))  # used again

    await shapes.own(key(4))
    await settle()

    assert device.released == [2]
    assert (shapes.prepared, shapes.dropped) == (4, 1)
    assert device.shape_memory.held_bytes == 9 * MIB


async def test_a_model_that_gets_ever_new_shapes_drops_none_of_its_neighbour() -> None:
    device = FakeDevice(limit_bytes=10 * MIB)
    neighbour, churning = shapes_on(device), shapes_on(device)
    kept = [await neighbour.own(key(length)) for length in (1, 2, 3)]

    for length in range(100):
        await churning.own(key(length))
    await settle()

    assert [neighbour.ready(key(length)) for length in (1, 2, 3)] == kept
    assert (neighbour.dropped, churning.dropped) == (0, 93)
    assert device.shape_memory.held_bytes <= 10 * MIB


async def test_a_model_that_held_everything_makes_room_for_another() -> None:
    device = FakeDevice(limit_bytes=10 * MIB)
    first, second = shapes_on(device), shapes_on(device)
    for length in range(10):
        await first.own(key(length))

    for length in range(10):
        await second.own(key(length))
    await settle()

    assert (first.dropped, second.dropped) == (5, 5)


async def test_what_is_larger_than_the_bound_serves_alone() -> None:
    device = FakeDevice(limit_bytes=MIB, size_bytes=5 * MIB)
    shapes = shapes_on(device)
    for length in (1, 2):
        await shapes.own(key(length))
    await settle()

    assert shapes.ready(key(2)) is not None
    assert device.released == [1]


async def test_closing_gives_back_every_executable_and_all_bytes() -> None:
    device = FakeDevice()
    shapes = await with_session(device)
    own = await shapes.own(key(3))

    executables = await shapes.close()

    assert own in executables
    assert len(executables) == 2
    assert device.shape_memory.held_bytes == 0
