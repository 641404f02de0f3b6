"""A comparison in a real worker that is left as the device moves, and goes on when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from braid.core.device_state import DeviceState
from braid.core.measurement import PlanMeasurement
from braid.core.plan import StreamPlan, sequential_plan
from braid.core.program import PlansToCompare, ProgramKey
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.host.report import file_digest
from braid.engine.link.messages import (
    ComparePlans,
    DescribeProgram,
    LoadModel,
    MeasureStage,
    UnloadModel,
)
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.worker.measuring.state_guard import FRESH_S
from tests.engine.importer.running import import_here
from tests.engine.worker.serving import ServedWorker
from tests.models.small import small_cnn

NEAR, FAR = DeviceState(((0, 1),)), DeviceState(((0,), (1,)))


class MovingBackend(CpuBackend):
    """Told how many looks find its cores near; they are far from then on."""

    near_looks = 1 << 30
    references = 0  # that were computed: a comparison that begins computes one

    def state(self, pause: YieldToRequests = no_pause) -> DeviceState:
        self.near_looks -= 1
        return NEAR if self.near_looks >= 0 else FAR

    def interpret(self, *arguments: Any) -> Any:
        self.references += 1
        return super().interpret(*arguments)


class Served:
    """A worker whose device is moved, with a loaded model."""

    def __init__(self, folder: Path) -> None:
        upload = small_cnn(folder / "cnn.onnx")
        self.digest = file_digest(upload)
        import_here(upload, folder / "artefact")
        self.backend = MovingBackend(CpuExecutor(2))
        self.worker = ServedWorker(lambda: self.backend, 1 << 20)
        self.worker.call(LoadModel(self.digest, str(folder / "artefact")))
        spec = TensorType("FP32", (2, 3, 16, 16))
        self.program = ProgramKey(self.digest, (("x", spec),))
        units = len(self.worker.call(DescribeProgram(self.program)).graph.operators)
        plans = (sequential_plan(units), StreamPlan(sequential_plan(units).launches, 1))
        field = PlansToCompare(self.program, plans, (), 1e-4)
        self.comparison = ComparePlans(self.program, (field,), state="near")

    def left_after(self, looks: int) -> None:
        self._move(looks)
        name, text = self.worker.fail(self.comparison)
        assert (name, "near and are far now" in text) == ("DeviceChanged", True)

    def _move(self, near_looks: int) -> None:
        time.sleep(2 * FRESH_S)  # no look of before counts
        self.backend.near_looks = near_looks

    def compare(self) -> Sequence[PlanMeasurement]:
        self._move(1 << 30)
        return self.worker.call(self.comparison).plans

    def measure_far(self) -> None:
        self._move(0)
        stage = MeasureStage(self.program, Stage(((0,),)), state="far")
        assert self.worker.call(stage).latency_us > 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.worker.close()
    assert served.worker.error is None


def test_it_goes_on_where_it_was(served: Served) -> None:
    for _ in range(3):
        served.left_after(2)
        served.measure_far()

    plans = served.compare()

    assert served.backend.references == 1, "it was begun once"
    assert [plan.problem for plan in plans] == ["", ""]
    assert all(plan.max_abs_error is not None and plan.latency_us for plan in plans)


def test_what_is_left_goes_with_its_model(served: Served) -> None:
    served.left_after(2)

    served.worker.call(UnloadModel(served.digest))

    name, _ = served.worker.fail(served.comparison)
    assert name == "PreconditionFailed"
