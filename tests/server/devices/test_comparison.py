"""A device worker with an imported model: whole models against each other, ONNX Runtime too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

from braid.core.plan import sequential_plan
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import file_digest
from braid.engine.link.messages import ComparePlans, DescribeProgram, FindFacts, MeasureStage
from braid.engine.link.options import WorkerOptions
from braid.server.devices.device import Device
from braid.server.devices.executables import Executable
from tests.engine.importer.running import import_here
from tests.models.small import small_cnn

OPTIONS = WorkerOptions(2, 64 << 20, 64 << 20, 3)
INPUTS = {"x": TensorType("FP32", (2, 3, 16, 16))}


async def test_a_worker_measures_stages_merges_and_whole_models_in_any_precision_and_serves_them(
    tmp_path: Path,
) -> None:
    upload = small_cnn(tmp_path / "cnn.onnx")
    digest = file_digest(upload)
    import_here(upload, tmp_path / "artefact")
    device = Device("cpu", OPTIONS)
    await device.start()
    try:
        device.keep(digest)
        await device.load(digest, tmp_path / "artefact")
        program = ProgramKey(digest, tuple(INPUTS.items()))
        graph = (await device.ask(DescribeProgram(program))).graph
        facts = await device.ask(FindFacts(program))
        (branches,) = facts.merge_groups
        merged = await device.ask(MeasureStage(program, Stage((branches,), "merge")))
        alone = await device.ask(MeasureStage(program, Stage(((0,),)), threads=1))
        told: list[float] = []
        plan = sequential_plan(len(graph.operators))
        field = PlansToCompare(program, (plan,), device.runtimes, 1e-4)
        measurements = (await device.ask(ComparePlans(program, (field,)), told.append)).plans
        of_errors = ComparePlans(program, (field,), is_timed=False)
        untimed = (await device.ask(of_errors)).plans
        ready = await device.prepare(PlanToRun(program, plan, "x", runtime=ONNXRUNTIME))
        outputs = await _infer(device, ready)
        others = [
            await _infer(device, await device.prepare(PlanToRun(program, plan, name, runtime=name)))
            for name in device.runtimes
        ]
        in_bf16 = replace(program, precision="bf16")
        narrow = (await device.ask(DescribeProgram(in_bf16))).graph
        narrow_plan = sequential_plan(len(narrow.operators))
        field = PlansToCompare(in_bf16, (narrow_plan,), (), 0.05)
        (coarse,) = (await device.ask(ComparePlans(in_bf16, (field,)))).plans
        ready = await device.prepare(PlanToRun(in_bf16, narrow_plan, "y"))
        rounded = await _infer(device, ready)
        precisions = device.precisions
    finally:
        await device.close()

    assert len(facts.profiles) == len(graph.operators)
    assert min(merged.latency_us, alone.latency_us) > 0
    assert device.runtimes[0] == ONNXRUNTIME
    assert [measurement.problem for measurement in measurements] == [""] * (1 + len(others))
    assert all(measurement.max_rel_error is not None for measurement in measurements)
    assert max(measurement.max_rel_error or 0.0 for measurement in measurements) < 1e-5
    assert told == sorted(told)
    assert all((measurement.max_rel_error or 0.0) < 1e-5 for measurement in untimed)
    assert all(measurement.max_rel_error is not None for measurement in untimed)
    assert [measurement.latency_us for measurement in untimed] == [None] * len(measurements)
    session = onnxruntime.InferenceSession(str(upload), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": _ROWS})[0]
    for found in (outputs, *others):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    assert precisions[0] == "fp32"
    assert set(precisions) <= {"fp32", "bf16", "int8"}  # to be asked for; the worker does all
    assert {narrow.spec(op.outputs[0]).dtype for op in narrow.operators} == {"BF16", "FP32"}
    assert coarse.max_rel_error is not None
    assert 1e-4 < coarse.max_rel_error < 0.05, "against FP32, not against itself"
    np.testing.assert_allclose(rounded, expected, atol=0.05 * np.abs(expected).max())


_ROWS = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)


async def _infer(device: Device, ready: Executable) -> np.ndarray:
    offset = device.arena.allocate(ready.layout.size_bytes)
    assert offset is not None
    field = ready.layout.inputs["x"]
    start = offset + field.offset
    device.arena.view[start : start + _ROWS.nbytes] = _ROWS.tobytes()
    await device.run(ready, offset)
    out = ready.layout.outputs["y"]
    data = bytes(device.arena.view[offset + out.offset :][: out.spec.size_bytes])
    device.arena.release(offset)
    return np.frombuffer(data, np.float32).reshape(2, 4, 16, 16)
