"""A search in a real worker that is left as the device moves, and goes on when it is back."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from braid.compiler.planner_messages import PlansFound, decode
from braid.compiler.process import answer_searches
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.host.report import file_digest
from braid.engine.link.messages import (
    DescribeProgram,
    FindFacts,
    LoadModel,
    MeasureStage,
    SearchPlans,
)
from braid.engine.worker.loop import Worker
from braid.engine.worker.measuring.measurements import Task
from braid.engine.worker.measuring.state_guard import FRESH_S
from tests.engine.importer.running import import_here
from tests.engine.worker.serving import ServedWorker
from tests.engine.worker.test_left_comparison import MovingBackend
from tests.models.small import small_cnn


def test_a_search_goes_on_where_the_device_moved(tmp_path: Path) -> None:
    upload = small_cnn(tmp_path / "cnn.onnx")
    digest = file_digest(upload)
    import_here(upload, tmp_path / "artefact")
    backend, measured = MovingBackend(CpuExecutor(2)), Counter[Stage]()

    def prepare(worker: Worker) -> None:
        answer_searches(worker, cores=())
        measure = worker.measurements[MeasureStage]

        def counted(request: MeasureStage) -> Task:
            measured[request.stage] += 1
            return measure(request)

        worker.measurements[MeasureStage] = counted

    worker = ServedWorker(lambda: backend, 1 << 20, prepare=prepare)
    worker.call(LoadModel(digest, str(tmp_path / "artefact")))
    program = ProgramKey(digest, (("x", TensorType("FP32", (2, 3, 16, 16))),))
    units = len(worker.call(DescribeProgram(program)).graph.operators)
    facts = worker.call(FindFacts(program))
    search = SearchPlans(program, "sequential", facts, "{}", 4 << 30, 600.0, state="near")

    for _ in range(2):
        backend.near_looks = 1
        assert worker.fail(search)[0] == "DeviceChanged"
        time.sleep(2 * FRESH_S)  # no look of before counts
    backend.near_looks = 1 << 30
    found = decode(worker.call(search).plans)
    worker.close()

    assert sum(measured.values()) == len(measured) + 2, "what was measured as it moved, once more"
    assert isinstance(found, PlansFound)
    assert len(found.planned[0].plan.launches) == units
