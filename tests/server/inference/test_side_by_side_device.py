"""Batches side by side through a real worker: right answers, also from the worker that follows."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import ModelOptions
from braid.core.errors import DeadlineExceeded, Unavailable
from braid.core.inputs import GivenTensor
from braid.core.measurement import SideBySideRuns, Speed
from braid.core.plan import sequential_plan
from braid.core.schedule import Provenance, Schedule, ScheduleKey
from braid.engine.importer.host.report import read_graph, read_report
from braid.engine.link.options import WorkerOptions
from braid.server.devices.device import Device
from braid.server.devices.executables import RunLimits
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import DeviceExecution
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import GivenRequest, check_request
from braid.server.store.records import ModelVersion
from tests.engine.worker.serving import DIGEST
from tests.engine.worker.test_side_by_side import CHANNELS, EXTENT, convolutions, expected
from tests.server.inference.batching import Watcher

pytestmark = pytest.mark.asyncio(loop_scope="module")

Array = np.ndarray[Any, Any]
FOUND = SideBySideRuns(2, "", 1.0, Speed(1.2, 1.1, 1.3))
SHAPE = (1, CHANNELS, EXTENT, EXTENT)
OPTIONS = WorkerOptions(2, 1 << 22, 1 << 20, 1)


def scheduled() -> Schedule:
    """A schedule that says that two runs side by side pay, and much."""
    key = ScheduleKey(DIGEST, "device", 1)
    seen = Provenance(measured_us=1e6, sequential_us=1e6, side_by_side=FOUND)
    return Schedule(key, "sequential", sequential_plan(3), (), ("a", "b", "y"), seen)


async def once(
    batcher: Batcher, model: ModelReplica, x: Array, deadline: float | None = None
) -> tuple[Array, str]:
    """Output and plan of one request."""
    given = GivenRequest("", [GivenTensor("x", "FP32", SHAPE, x.tobytes())], ())
    answer = await batcher.submit(model, check_request(model, given), Watcher(), deadline)
    tensor = answer.outputs["y"]
    return np.frombuffer(bytes(tensor.data), np.float32).reshape(SHAPE), answer.plan_id


async def infer(batcher: Batcher, model: ModelReplica, x: Array) -> tuple[Array, str]:
    """As ``once``, sent again while the worker restarts."""
    while True:
        try:
            return await once(batcher, model, x)
        except Unavailable:
            await asyncio.sleep(0.05)


INPUTS = np.random.default_rng(0).standard_normal((16, *SHAPE)).astype(np.float32)


@dataclass(frozen=True)
class Started:
    device: Device

    @property
    def worker(self) -> psutil.Process:
        return psutil.Process(self.device.pids["serving"])


@dataclass(frozen=True)
class Served:
    """A device with a model that runs side by side under load."""

    on: Started
    model: ModelReplica
    batcher: Batcher
    right: Sequence[Array]  # answers to INPUTS

    async def check_all(self) -> set[str]:
        """Ask all at once, four times, and check the answers; returns the plans that ran."""
        plans: set[str] = set()
        for _ in range(4):
            answers = await asyncio.gather(*(infer(self.batcher, self.model, x) for x in INPUTS))
            plans.update(plan for _, plan in answers)
            for (got, _), want in zip(answers, self.right, strict=True):
                np.testing.assert_allclose(got, want, atol=1e-4)
        return plans


@asynccontextmanager
async def started(
    options: WorkerOptions, run_limits: RunLimits | None = None
) -> AsyncIterator[Started]:
    device = Device("cpu", options, run_limits=run_limits)
    await device.start()
    try:
        yield Started(device)
    finally:
        gc.collect()  # tracebacks of calls that failed hold views of the arena
        await device.close()


@asynccontextmanager
async def serving(folder: Path, on: Started) -> AsyncIterator[Served]:
    weights = convolutions(folder)
    report = read_report(folder)
    version = ModelVersion("c", 1, DIGEST, 1, ModelOptions((1,)))
    graph = read_graph(folder, report)
    imported = ImportedModel(DIGEST, version.options, folder, graph, report)
    right = [expected(torch.from_numpy(x), weights).numpy() for x in INPUTS]
    model = ModelReplica(version, imported, on.device)
    await on.device.load(DIGEST, folder)
    await model.use_plan(1, scheduled())
    model.expect(1, 1e6)
    batcher = Batcher(DeviceExecution(on.device))
    yield Served(on, model, batcher, right)
    await batcher.drain()
    await model.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def device() -> AsyncIterator[Started]:
    """One device for the tests that leave it sound."""
    async with started(OPTIONS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def served(device: Started, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "artefact", device) as running:
        yield running


def runs_beside(plans: set[str]) -> bool:
    return any(plan.startswith("side-by-side-2-") for plan in plans)


async def test_sixteen_callers_get_right_answers_before_and_after_the_worker_dies(
    served: Served,
) -> None:
    before = await served.check_all()
    served.on.worker.kill()
    after = await served.check_all()

    assert runs_beside(before)
    assert runs_beside(after)


async def test_a_plan_is_swapped_while_runs_go_on_side_by_side(served: Served) -> None:
    for schedule in (None, scheduled(), None, scheduled()):
        asked = asyncio.create_task(served.check_all())
        await asyncio.sleep(0)
        await served.model.use_plan(1, schedule)
        await asked

    assert runs_beside(await served.check_all())


async def test_callers_that_leave_or_are_late_cost_no_other(served: Served) -> None:
    given = [asyncio.create_task(infer(served.batcher, served.model, x)) for x in INPUTS]
    late = asyncio.create_task(
        once(served.batcher, served.model, INPUTS[0], deadline=time.monotonic())
    )
    await asyncio.sleep(0)
    for task in given[::2]:
        task.cancel()
    ended = await asyncio.gather(*given, late, return_exceptions=True)

    assert isinstance(ended[-1], DeadlineExceeded)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended[:-1:2])
    for number in range(1, 16, 2):
        answer = ended[number]
        assert isinstance(answer, tuple), answer
        np.testing.assert_allclose(answer[0], served.right[number], atol=1e-4)
