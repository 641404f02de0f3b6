"""Runs on places of a CPU: right outputs, at once, and each stopped alone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from braid.core.program import PlanToRun, ProgramKey
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.device import Backend, DevicePart, FinishedRun
from braid.engine.link.messages import (
    CompareThroughput,
    LoadModel,
    PrepareExecutable,
    RunExecutable,
    UnloadModel,
    WorkerAnswer,
    WorkerFailure,
)
from braid.engine.link.shared_memory import slot_layout
from braid.engine.runtime.stopping import check_stopped
from braid.engine.worker.measuring import throughput
from tests.engine.passes.drawing import CONV, Drawing
from tests.engine.worker.serving import DIGEST, ServedWorker, artefact

CHANNELS, EXTENT = 8, 12
SPEC = TensorType("FP32", (1, CHANNELS, EXTENT, EXTENT))
KEY = ProgramKey(DIGEST, (("x", SPEC),))
LAYOUT = slot_layout({"x": SPEC}, {"y": SPEC})
TIMEOUT_S = 120.0
ALL, BESIDE = 1, 2
"""Numbers of executables: on all of the device, and side by side."""


#   x ──> a ──> b ──> y, 3x3 convolutions
def convolutions(folder: Path) -> dict[str, Tensor]:
    """Write the artefact; returns the weights."""
    random, draw, y = torch.Generator().manual_seed(1), Drawing(x=SPEC.shape), "x"
    for name in ("a", "b", "y"):
        weight = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=random) / 9
        draw.weights[f"w_{name}"] = weight
        y = draw.op("aten.convolution", y, f"w_{name}", **CONV)
    artefact(folder, *draw.static(y=y))
    return draw.weights


def expected(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Output of the model in torch's own operators, in double precision."""
    y = x.double()
    for weight in weights.values():
        y = torch.nn.functional.conv2d(y, weight.double(), padding=1)
    return y


class Front:
    """The front end of a worker: slots with inputs and outputs."""

    def __init__(self, worker: ServedWorker) -> None:
        self.worker = worker

    def tensor(self, slot: int, name: str) -> Tensor:
        place = {**LAYOUT.inputs, **LAYOUT.outputs}[name]
        offset = slot * LAYOUT.size_bytes + place.offset
        return self.worker.view(offset, (1, CHANNELS, EXTENT, EXTENT))

    def run(self, number: int, slot: int) -> int:
        return self.worker.send(RunExecutable(number, slot * LAYOUT.size_bytes))


@pytest.fixture
def cpu(tmp_path: Path) -> Iterator[tuple[Front, dict[str, Tensor]]]:
    weights = convolutions(tmp_path / "artefact")
    worker = ServedWorker(lambda: CpuBackend(CpuExecutor(2)), 1 << 20)
    worker.call(LoadModel(DIGEST, str(tmp_path / "artefact")))
    worker.call(PrepareExecutable(ALL, PlanToRun(KEY)))
    worker.call(PrepareExecutable(BESIDE, PlanToRun(KEY, side_by_side=2)))
    yield Front(worker), weights
    worker.close()
    assert worker.error is None


def test_runs_side_by_side_and_on_all_threads_give_right_outputs_in_any_order(
    cpu: tuple[Front, dict[str, Tensor]],
) -> None:
    front, weights = cpu

    check_twelve_runs(front, weights, on_all=(3, 4, 9))


def check_twelve_runs(front: Front, weights: dict[str, Tensor], on_all: Sequence[int]) -> None:
    inputs = torch.randn(12, CHANNELS, EXTENT, EXTENT)
    for slot in range(12):
        front.tensor(slot, "x").copy_(inputs[slot : slot + 1])

    calls = [front.run(ALL if slot in on_all else BESIDE, slot) for slot in range(12)]
    answers = [front.worker.answer(call) for call in calls]

    assert all(isinstance(answer, WorkerAnswer) for answer in answers), answers
    for slot in range(12):
        want = expected(inputs[slot : slot + 1], weights)
        assert torch.allclose(front.tensor(slot, "y").double(), want, atol=1e-4)


def test_four_threads_are_measured_and_run_as_four_places(tmp_path: Path) -> None:
    weights = convolutions(tmp_path / "artefact")
    worker = ServedWorker(lambda: CpuBackend(CpuExecutor(4)), 1 << 20)
    try:
        worker.call(LoadModel(DIGEST, str(tmp_path / "artefact")))
        found = worker.call(CompareThroughput(KEY, PlanToRun(KEY), ("",), 1e-4))
        assert [(each.count, each.runtime) for each in found.ways] == [(4, "")]
        (way,) = found.ways
        assert len(way.ratios) >= 5

        worker.call(PrepareExecutable(ALL, PlanToRun(KEY)))
        worker.call(PrepareExecutable(BESIDE, PlanToRun(KEY, side_by_side=4)))
        check_twelve_runs(Front(worker), weights, on_all=(6,))
    finally:
        worker.close()


def test_ways_near_the_best_one_are_compared_to_the_end(
    cpu: tuple[Front, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    front, _ = cpu
    whole_us, way_us = 10_000.0, [12_500.0, 12_000.0, 13_000.0]
    known: dict[int, float] = {}  # the copies of a way, by where they are kept
    real = throughput.Throughput._together

    def together(
        self: throughput.Throughput, copies: Sequence[Any], runs: int, outputs: Sequence[Any] = ()
    ) -> float:
        if outputs:
            return real(self, copies, runs, outputs)
        if copies[0].place is None:
            return whole_us
        return known.setdefault(id(copies), way_us[len(known) % 3])

    monkeypatch.setattr(throughput.Throughput, "_together", together)

    found = front.worker.call(CompareThroughput(KEY, PlanToRun(KEY), ("", "", ""), 1e-4))

    assert [way.latency_us for way in found.ways] == way_us
    turns = [len(way.ratios) for way in found.ways]
    assert turns[0] == turns[1] == throughput.TURNS
    assert turns[2] == throughput.FIRST_TURNS


def test_a_model_that_ran_side_by_side_is_unloaded(cpu: tuple[Front, dict[str, Tensor]]) -> None:
    front, _ = cpu
    front.worker.answer(front.run(BESIDE, 0))

    front.worker.call(UnloadModel(DIGEST))

    assert "not prepared" in front.worker.fail(RunExecutable(BESIDE, 0))[1]


def test_a_device_that_cannot_be_divided_so_says_it(cpu: tuple[Front, dict[str, Tensor]]) -> None:
    front, _ = cpu
    name, text = front.worker.fail(PrepareExecutable(3, PlanToRun(KEY, side_by_side=3)))
    assert (name, text) == ("PreconditionFailed", "this device does not run 3 plans side by side")


@dataclass(frozen=True, eq=False)
class HeldPlace:
    """A place whose runs are the device's."""

    real: DevicePart
    backend: Any

    @property
    def span(self) -> range:
        return self.real.span

    def start(self, work: Callable[[], None]) -> None:
        self.real.start(work)


class HeldDevice:
    """A device of two threads on which runs go on until they are let go or stopped."""

    def __init__(self, real: Backend) -> None:
        self._real = real
        self.begun: dict[int, threading.Event] = {}  # by slot; set: the run ends
        self.changed = threading.Condition()
        self._places: list[HeldPlace] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def prepare(self, program: Any, plan: Any, pause: Any, opened: Any) -> Any:
        return SimpleNamespace(
            run=lambda *_: {}, begin=self.begin, release=lambda: None, activation_bytes=None
        )

    def begin(self, inputs: Any, outputs: Any) -> FinishedRun:
        slot, go = round(inputs["x"][0, 0, 0, 0].item()), threading.Event()
        with self.changed:
            self.begun[slot] = go
            self.changed.notify_all()
        while not go.wait(0.005):
            check_stopped()
        return FinishedRun(outputs)

    def places(self, count: int) -> list[HeldPlace]:
        if not self._places:
            self._places = [HeldPlace(each, self) for each in self._real.places(count)]
        return self._places

    def wait_for(self, *slots: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: {*slots} == self.begun.keys(), TIMEOUT_S)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Front, Callable[[], HeldDevice]]]:
    convolutions(tmp_path / "artefact")
    devices: list[HeldDevice] = []

    def make() -> Backend:
        devices.append(HeldDevice(CpuBackend(CpuExecutor(2))))
        return cast(Backend, devices[0])

    worker = ServedWorker(make, 1 << 20)
    worker.call(LoadModel(DIGEST, str(tmp_path / "artefact")))
    worker.call(PrepareExecutable(ALL, PlanToRun(KEY)))
    worker.call(PrepareExecutable(BESIDE, PlanToRun(KEY, side_by_side=2)))
    front = Front(worker)
    for slot in range(4):
        front.tensor(slot, "x").fill_(slot)
    yield front, lambda: devices[0]
    worker.close()


def test_two_runs_go_on_at_once_and_what_needs_all_threads_waits_for_both(
    held: tuple[Front, Callable[[], HeldDevice]],
) -> None:
    front, device = held
    first, second, whole = front.run(BESIDE, 0), front.run(BESIDE, 1), front.run(ALL, 2)
    device().wait_for(0, 1)
    status = front.worker.work.status()
    assert {status.call, *(call for call, _ in status.beside)} == {first, second}

    device().begun[0].set()
    assert isinstance(front.worker.answer(first), WorkerAnswer)
    assert 2 not in device().begun
    device().begun[1].set()
    device().wait_for(0, 1, 2)
    device().begun[2].set()

    assert isinstance(front.worker.answer(whole), WorkerAnswer)
    assert isinstance(front.worker.answer(second), WorkerAnswer)


def test_one_of_two_runs_is_stopped_and_the_other_goes_on(
    held: tuple[Front, Callable[[], HeldDevice]],
) -> None:
    front, device = held
    first, second = front.run(BESIDE, 0), front.run(BESIDE, 1)
    device().wait_for(0, 1)

    front.worker.work.stop(first, "not wanted")
    failed = front.worker.answer(first)
    assert isinstance(failed, WorkerFailure)
    assert (failed.error_class, failed.text) == ("RunStopped", "not wanted")
    third = front.run(BESIDE, 2)
    device().wait_for(0, 1, 2)
    for go in device().begun.values():
        go.set()

    assert isinstance(front.worker.answer(second), WorkerAnswer)
    assert isinstance(front.worker.answer(third), WorkerAnswer)


def test_a_run_that_was_stopped_before_it_began_does_not_begin(
    held: tuple[Front, Callable[[], HeldDevice]],
) -> None:
    front, device = held
    calls = [front.run(BESIDE, slot) for slot in range(3)]
    device().wait_for(0, 1)

    front.worker.work.stop(calls[2], "not wanted")
    for go in [*device().begun.values()]:
        go.set()

    assert [type(front.worker.answer(call)) for call in calls] == [
        *(WorkerAnswer, WorkerAnswer),
        WorkerFailure,
    ]
    assert 2 not in device().begun
