"""The batcher against a fake device: who gets which rows, and that every request ends once."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import ModelOptions
from braid.core.device_state import UNKNOWN
from braid.core.errors import InvalidRequest, WorkerRestarting
from braid.core.graph import OpGraph
from braid.core.inputs import GivenTensor
from braid.core.pieces import Work, joined
from braid.core.plan import StreamPlan
from braid.core.program import PlanToRun
from braid.core.schedule import SEQUENTIAL, Schedule, ScheduleKey
from braid.core.shapes import ShapeMemory
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.host.report import BatchAxes, Report, Verified
from braid.engine.link.messages import RunDone
from braid.engine.link.shared_memory import Arena, slot_layout
from braid.server.devices.device import DeviceEvents
from braid.server.devices.executables import Executable, WhenUnwanted
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import DeviceExecution
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import (
    GivenRequest,
    InferenceResult,
    OutputTensor,
    WriteReply,
    check_request,
)
from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import BatchPolicy
from tests.server.inference.batching import Watcher, settle

WIDTH = 3
SIZE_BYTES = 1 << 20  # of an executable


class FakeDevice:
    """Answers y = x + 1, and t = transposed x; notes every batch; can be held or broken."""

    def __init__(self) -> None:
        self.name = self.device_key = "fake"
        self.state = UNKNOWN
        self.events = DeviceEvents()
        self.arena = Arena(1 << 20)
        self.bench = SimpleNamespace(is_measuring=False)
        self.batches: list[np.ndarray[Any, Any]] = []
        self.gate, self.may_prepare = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.may_prepare.set()
        self.before_run: Callable[[np.ndarray[Any, Any]], None] = lambda x: None
        self.released: list[int] = []
        self.unwanted: list[int] = []  # batches, by their number
        self.asked = 0  # how often
        self._number = 0
        self.shape_memory = ShapeMemory(10 * SIZE_BYTES)

    @property
    def prepared(self) -> int:
        return self._number

    async def prepare(self, to_run: PlanToRun, like: Executable | None = None) -> Executable:
        await asyncio.sleep(0)
        await self.may_prepare.wait()
        self._number += 1
        inputs = to_run.program.specs
        rows, width = inputs["x"].shape
        outputs = {"y": TensorType("FP32", (rows, width)), "t": TensorType("FP32", (width, rows))}
        layout = slot_layout(inputs, outputs)
        return Executable(self._number, to_run, layout, size_bytes=SIZE_BYTES)

    def keep(self, digest: str) -> None: ...

    async def release(self, ready: Executable) -> None:
        self.released.append(ready.number)

    def run(
        self,
        ready: Executable,
        offset: int,
        when_unwanted: WhenUnwanted = lambda _: None,
        *,
        is_finite: bool = False,
    ) -> Coroutine[Any, Any, RunDone]:
        self.asked += 1
        return self._run(ready, offset, when_unwanted)

    async def _run(self, ready: Executable, offset: int, when_unwanted: WhenUnwanted) -> RunDone:
        number = len(self.batches)
        when_unwanted(lambda: self.unwanted.append(number))
        x = self._array(ready.layout.inputs["x"], offset).copy()
        self.batches.append(x)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.before_run(x)
        self._array(ready.layout.outputs["y"], offset)[:] = x + 1
        self._array(ready.layout.outputs["t"], offset)[:] = x.T
        return RunDone(7)

    def _array(self, field: Any, offset: int) -> np.ndarray[Any, Any]:
        start = offset + field.offset
        memory = self.arena.view[start : start + field.spec.size_bytes]
        return np.frombuffer(memory, np.float32).reshape(field.spec.shape)


class StillClock:
    """It is always the same moment: only what the device does lets the batcher go on."""

    def now(self) -> float:
        return 0.0

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.Handle:
        loop = asyncio.get_running_loop()
        return loop.call_soon(callback) if when <= 0 else loop.call_later(1e6, callback)


@pytest.fixture
async def device() -> FakeDevice:
    return FakeDevice()


def serve(device: Any, sizes: tuple[int, ...] = (1, 4)) -> ModelReplica:
    x = TensorType("FP32", (BATCH, "width"))
    graph = OpGraph(
        "fake", {"x": x}, {"y": "y", "t": "t"}, {}, (),
        {"y": x, "t": TensorType("FP32", ("width", BATCH))},
    )  # fmt: skip
    axes = BatchAxes({"x": 0}, {"y": 0, "t": 1})
    seen = Verified("none", (1,), 0.0, 1e-4)
    report = Report("0" * 64, 1, "onnx", 17, axes, (), {"x": (1, WIDTH)}, {}, (), seen)
    model = ModelVersion("fake", 1, "0" * 64, 1, ModelOptions(sizes))
    imported = ImportedModel(model.sha256, model.options, Path(), graph, report)
    return ModelReplica(model, imported, device)


def request_of(x: np.ndarray[Any, Any], outputs: tuple[str, ...] = ()) -> GivenRequest:
    return GivenRequest("", [GivenTensor("x", "FP32", x.shape, x.tobytes())], outputs)


def rows_from(start: int, rows: int) -> np.ndarray[Any, Any]:
    """Rows that say which request and which row they are."""
    return (start + np.arange(rows * WIDTH, dtype=np.float32)).reshape(rows, WIDTH)


class Service:
    def __init__(self, device: FakeDevice, sizes: tuple[int, ...] = (1, 4)) -> None:
        self.device = device
        self.model = serve(device, sizes)
        self.model.policy = BatchPolicy(max_wait_s=0, max_requests=8, max_rows=80)
        self.batcher = Batcher(DeviceExecution(device), StillClock())  # type: ignore[arg-type]
        self.watcher = Watcher()

    async def infer(
        self, x: np.ndarray[Any, Any], deadline: float | None = None
    ) -> InferenceResult:
        checked = check_request(self.model, request_of(x))
        return await self.batcher.submit(self.model, checked, self.watcher, deadline)


def array(outcome: InferenceResult, name: str) -> np.ndarray[Any, Any]:
    tensor = outcome.outputs[name]
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)


@settings(max_examples=40)
@given(
    rows=st.lists(st.integers(1, 11), min_size=1, max_size=7),
    sizes=st.sets(st.sampled_from([1, 2, 3, 4, 8]), min_size=1),
)
def test_every_caller_gets_its_own_rows(rows: list[int], sizes: set[int]) -> None:
    async def scenario() -> None:
        device = FakeDevice()
        service = Service(device, tuple(sizes))
        wanted = [rows_from(1000 * i, count) for i, count in enumerate(rows)]

        outcomes = await asyncio.gather(*(service.infer(x) for x in wanted))

        for x, outcome in zip(wanted, outcomes, strict=True):
            np.testing.assert_array_equal(array(outcome, "y"), x + 1)
            np.testing.assert_array_equal(array(outcome, "t"), x.T)
        assert {len(batch) for batch in device.batches} <= set(sizes)
        assert device.arena.used_bytes == 0
        assert service.watcher.waiting == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("outputs", [("y",), ("y", "t")])
async def test_a_reply_is_written_once_from_outputs_that_are_complete(
    device: FakeDevice, outputs: tuple[str, ...]
) -> None:
    """Of three rows padded to four, y lies together in the slot and is prepared early, t not."""
    service, events = Service(device), list[str]()
    x = rows_from(5, 3)

    def prepare(_: ModelReplica, found: Mapping[str, OutputTensor]) -> WriteReply:
        events.append("prepared")

        def write(_: InferenceResult) -> Work[bytes]:
            events.append("written")
            return joined([found[name].data for name in outputs])

        return write

    device.gate.clear()
    given = replace(request_of(x, outputs), reply=prepare)
    running = asyncio.create_task(
        service.batcher.submit(service.model, check_request(service.model, given), service.watcher)
    )
    await settle()
    early = list(events)
    device.gate.set()
    result = await running

    assert early == (["prepared"] if outputs == ("y",) else [])
    assert events == ["prepared", "written"]
    assert result.reply == b"".join([(x + 1).tobytes(), x.T.tobytes()][: len(outputs)])
    assert not result.outputs


async def test_a_request_that_finds_its_device_idle_is_sent_without_a_turn_of_the_loop(
    device: FakeDevice,
) -> None:
    service = Service(device)
    await service.infer(rows_from(0, 1))  # makes the executable
    await settle()
    device.gate.clear()

    running = asyncio.create_task(service.infer(rows_from(1, 1)))
    await asyncio.sleep(0)
    asked = device.asked
    device.gate.set()
    await running

    assert asked == 2


class Unreadable:
    """Content that is gone when a batch is formed."""

    def __len__(self) -> int:
        return WIDTH * 4

    def __bytes__(self) -> bytes:
        return bytes(len(self))

    def read_into(self, memory: memoryview, start: int) -> None:
        raise InvalidRequest("it is gone")


async def test_a_request_that_cannot_be_copied_fails_and_leaves_nothing_behind(
    device: FakeDevice,
) -> None:
    service = Service(device)
    await service.infer(rows_from(0, 1))
    given = replace(
        request_of(rows_from(1, 1)), inputs=[GivenTensor("x", "FP32", (1, WIDTH), Unreadable())]
    )
    checked = check_request(service.model, given)

    with pytest.raises(InvalidRequest, match="it is gone"):
        await service.batcher.submit(service.model, checked, service.watcher)
    await service.batcher.drain()

    assert device.asked == 1
    assert device.arena.used_bytes == 0
    await service.infer(rows_from(2, 1))


async def test_other_shapes_never_share_a_batch(device: FakeDevice) -> None:
    service = Service(device)
    device.gate.clear()
    wide = np.ones((1, 5), np.float32)
    running = [
        asyncio.create_task(service.infer(x))
        for x in (rows_from(0, 1), rows_from(1, 1), rows_from(2, 1), wide, rows_from(3, 1))
    ]
    await settle()
    device.gate.set()

    outcomes = await asyncio.gather(*running)

    assert array(outcomes[3], "y").shape == (1, 5)
    assert [batch.shape for batch in device.batches] == [(1, WIDTH), (4, WIDTH), (1, 5)]


async def test_a_run_is_unwanted_once_the_last_of_its_callers_has_left(device: FakeDevice) -> None:
    service = Service(device, (1, 3))
    device.gate.clear()
    first = asyncio.create_task(service.infer(rows_from(0, 1)))
    await settle()
    running = [asyncio.create_task(service.infer(rows_from(10 * i, 1))) for i in (1, 2, 3)]
    await settle()
    assert [len(batch) for batch in device.batches] == [1, 3]

    for caller in running:
        assert device.unwanted == []
        caller.cancel()
        await asyncio.wait([caller])
    assert device.unwanted == [1]

    device.gate.set()
    await first
    assert device.unwanted == [1], "it had its result"


async def test_a_dead_worker_ends_every_request_of_its_batch(device: FakeDevice) -> None:
    def die(_: np.ndarray[Any, Any]) -> None:
        raise WorkerRestarting("gone")

    device.before_run = die
    service = Service(device)

    outcomes = await asyncio.gather(
        *(service.infer(rows_from(i, 1)) for i in range(6)), return_exceptions=True
    )

    assert all(isinstance(outcome, WorkerRestarting) for outcome in outcomes)
    assert device.arena.used_bytes == 0


async def test_a_swap_changes_the_plan_between_batches_and_frees_the_old_one(
    device: FakeDevice,
) -> None:
    service = Service(device)
    await service.model.use_plan(1)
    device.gate.clear()
    before = asyncio.create_task(service.infer(rows_from(0, 1)))
    await settle()
    schedule = Schedule(ScheduleKey("d", "fake", 1), "ios", StreamPlan((), 1), (), ())
    await service.model.use_plan(1, schedule)
    assert device.released == []
    after = asyncio.create_task(service.infer(rows_from(1, 1)))
    await settle()
    device.gate.set()

    plans = [outcome.plan_id for outcome in await asyncio.gather(before, after)]
    await settle()

    assert plans == [SEQUENTIAL, schedule.plan_id]
    assert device.released == [1]


async def test_executables_for_other_shapes_are_kept_in_bounds(device: FakeDevice) -> None:
    service = Service(device, (1,))
    widths = range(1, 16)

    for width in widths:
        await service.infer(np.zeros((1, width), np.float32))
    await service.infer(np.zeros((1, widths[-1]), np.float32))

    assert device.released == [1, 2, 3, 4, 5]
    assert device.prepared == len(widths)


async def test_batches_that_wait_for_executables_hold_up_no_other_model(device: FakeDevice) -> None:
    service, other, x = Service(device, (1,)), serve(device, (1,)), rows_from(0, 1)
    await other.use_plan(1)
    device.may_prepare.clear()
    widths = (5, 6, 7)
    waiting = [asyncio.create_task(service.infer(np.zeros((1, w), np.float32))) for w in widths]
    await settle()

    checked = check_request(other, request_of(x))
    answer = await asyncio.wait_for(service.batcher.submit(other, checked, Watcher()), timeout=120)

    np.testing.assert_array_equal(array(answer, "y"), x + 1)
    assert not any(task.done() for task in waiting)
    device.may_prepare.set()
    answers = await asyncio.gather(*waiting)
    assert [array(answer, "y").shape for answer in answers] == [(1, width) for width in widths]
    assert device.arena.used_bytes == 0


async def test_draining_one_model_does_not_wait_for_another(device: FakeDevice) -> None:
    service = Service(device)
    other = serve(device)
    device.gate.clear()
    checked = check_request(other, request_of(rows_from(0, 1)))
    busy = asyncio.create_task(service.batcher.submit(other, checked, Watcher()))
    await settle()

    await asyncio.wait_for(service.batcher.drain(service.model), timeout=120)

    assert not busy.done()
    device.gate.set()
    await busy
