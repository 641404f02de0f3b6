"""Batches side by side through a real worker: right answers, also from the worker that follows."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from braid.core.errors import Unavailable
from braid.core.measurement import SideBySide, Speed
from braid.core.plan import sequential_plan
from braid.core.schedule import Provenance, Schedule, ScheduleKey
from braid.engine.importer.host.report import read_graph, read_report
from braid.engine.link.options import WorkerOptions
from braid.server.devices.device import Device
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import DeviceExecution
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import GivenRequest, GivenTensor, check_request
from braid.server.jobs.imported_model import ImportedModel
from braid.server.store.records import ModelVersion, RegistrationOptions
from tests.engine.worker.test_side_by_side import (
    CHANNELS,
    DIGEST,
    EXTENT,
    convolutions,
    expected,
)
from tests.server.inference.batching import Watcher

Array = np.ndarray[Any, Any]
FOUND = SideBySide(2, "", 1.0, Speed(1.2, 1.1, 1.3))
SHAPE = (1, CHANNELS, EXTENT, EXTENT)


def scheduled() -> Schedule:
    """A schedule that says that two runs side by side pay, and much."""
    key = ScheduleKey(DIGEST, "device", 1)
    seen = Provenance(measured_us=1e6, sequential_us=1e6, side_by_side=FOUND)
    return Schedule(key, "sequential", sequential_plan(3), (), ("a", "b", "y"), seen)


async def infer(batcher: Batcher, model: ModelReplica, x: Array) -> tuple[Array, str]:
    """Output and plan of one request, sent again while the worker restarts."""
    given = GivenRequest("", [GivenTensor("x", "FP32", SHAPE, x.tobytes())], ())
    while True:
        try:
            answer = await batcher.submit(model, check_request(model, given), Watcher())
        except Unavailable:
            await asyncio.sleep(0.05)
            continue
        tensor = answer.outputs["y"]
        return np.frombuffer(bytes(tensor.data), np.float32).reshape(SHAPE), answer.plan_id


async def test_sixteen_callers_get_right_answers_before_and_after_the_worker_dies(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "artefact"
    weights = convolutions(folder)
    report = read_report(folder)
    version = ModelVersion("c", 1, DIGEST, 1, RegistrationOptions((1,)))
    imported = ImportedModel(version, folder, read_graph(folder, report), report)
    inputs = np.random.default_rng(0).standard_normal((16, *SHAPE)).astype(np.float32)
    wanted = [expected(torch.from_numpy(x), weights).numpy() for x in inputs]
    device = Device("cpu", WorkerOptions(2, 1 << 22, 1 << 20, 1, keep_spare=False))
    others = {*psutil.Process().children()}
    await device.start()
    plans: set[str] = set()
    try:
        model = ModelReplica(imported, device)
        await device.load(DIGEST, folder)
        await model.use_plan(1, scheduled())
        model.expect(1, 1e6)
        batcher = Batcher(DeviceExecution(device))
        for is_first in (True, False):
            for _ in range(4):
                answers = await asyncio.gather(*(infer(batcher, model, x) for x in inputs))
                plans.update(plan for _, plan in answers)
                for (got, _), want in zip(answers, wanted, strict=True):
                    np.testing.assert_allclose(got, want, atol=1e-4)
            if is_first:
                (worker,) = {*psutil.Process().children()} - others
                worker.kill()
        await batcher.drain()
        await model.close()
    finally:
        gc.collect()  # tracebacks of calls that failed hold views of the arena
        await device.close()

    assert any(plan.startswith("side-by-side-2-") for plan in plans)
