"""A device worker on a GPU, as the front end sees it: what it answers, and how it fails."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from braid.core.errors import DeviceLost
from braid.core.plan import StreamPlan, sequential_plan
from braid.core.precision import TOLERANCES
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey
from braid.core.schedule import Stage
from braid.engine.cuda.executor import UPLOADS
from braid.engine.link.messages import (
    AnyRequest,
    ComparePlans,
    DescribeDevice,
    DescribeProgram,
    FindFacts,
    LoadModel,
    MeasureStage,
    PrepareExecutable,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
    WorkerAnswer,
    WorkerFailure,
)
from braid.engine.passes.specialise import interpret, specialise
from tests.engine.cuda.graphs import bound, random_graph, random_plan
from tests.engine.cuda.recording import CudaError
from tests.engine.cuda.serving import GPU, ServedGpu, fail_launches
from tests.engine.worker.serving import DIGEST, artefact

TEMPLATE, WEIGHTS = random_graph(seed=10, units=80)
GRAPH, CONSTANTS = specialise(TEMPLATE, WEIGHTS, TEMPLATE.inputs)
PROGRAM = bound(GRAPH, CONSTANTS)  # 20 units: the others are dead
SEQUENTIAL = sequential_plan(len(PROGRAM.units))
PARALLEL = replace(random_plan(PROGRAM, seed=1, barriers=True), merges=())
KEY = ProgramKey(DIGEST, tuple(TEMPLATE.inputs.items()))

FIELD_BYTES = 192  # of 144, aligned to 64
SLOT_BYTES = 1024


def out_of_memory() -> Exception:
    return CudaError("out of memory", 2)


def poisoned() -> Exception:
    return CudaError("an illegal memory access was encountered", 700)


def prepare(number: int, plan: StreamPlan | None, key: ProgramKey = KEY) -> PrepareExecutable:
    return PrepareExecutable(number, PlanToRun(key, plan))


def compared(*plans: StreamPlan, runtimes: tuple[str, ...] = ()) -> ComparePlans:
    return ComparePlans(KEY, (PlansToCompare(KEY, plans, runtimes, 1e-4),))


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[ServedGpu]:
    served = ServedGpu()
    served.call(LoadModel(DIGEST, str(artefact(tmp_path / "model", TEMPLATE, WEIGHTS))))
    yield served
    served.close()


def infer(gpu: ServedGpu, number: int, seed: int) -> None:
    """One request; its answer must be the interpreter's."""
    gpu.view(0, (6, 6)).copy_(given(seed))
    gpu.call(RunExecutable(number, 0))
    check(gpu, seed, slot=0)


def given(seed: int) -> torch.Tensor:
    return torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))


def check(gpu: ServedGpu, seed: int, slot: int, tolerance: float = 1e-4) -> None:
    """The slot's outputs are those for ``given(seed)``."""
    expected = interpret(GRAPH, CONSTANTS, {"x": given(seed)})
    for place, name in enumerate(GRAPH.outputs, start=1):
        got = gpu.view(slot * SLOT_BYTES + place * FIELD_BYTES, (6, 6))
        wanted = expected[name]
        error = (got - wanted).abs().max() / wanted.abs().max()
        assert error <= tolerance, name


def test_where_pages_cannot_be_locked_inputs_are_staged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = ServedGpu(refuses_to_lock=True)
    try:
        served.call(LoadModel(DIGEST, str(artefact(tmp_path / "model", TEMPLATE, WEIGHTS))))
        served.call(prepare(1, SEQUENTIAL))
        infer(served, 1, seed=1)
    finally:
        served.close()
    assert "operation not supported" in caplog.text


def test_a_worker_names_its_gpu(gpu: ServedGpu) -> None:
    known = gpu.call(DescribeDevice())

    assert known.device_key == GPU.device_key
    assert known.device_key.startswith("cuda:NVIDIA H200:cc=9.0:sms=132:memory=140GiB:driver=")
    assert known.software["cudnn"] == "91002"


@pytest.mark.parametrize(("precision", "narrow"), [("tf32", "FP32"), ("fp16", "FP16")])
def test_a_plan_may_compute_in_another_precision(
    gpu: ServedGpu, precision: str, narrow: str
) -> None:
    key = replace(KEY, precision=precision)
    graph = gpu.call(DescribeProgram(key)).graph
    plan = sequential_plan(len(graph.operators))

    gpu.call(prepare(1, plan, key))

    assert precision in gpu.call(DescribeDevice()).precisions
    assert narrow in {spec.dtype for spec in graph.specs.values()}
    gpu.view(0, (6, 6)).copy_(given(1))
    gpu.call(RunExecutable(1, 0))
    check(gpu, 1, slot=0, tolerance=TOLERANCES[precision])


@pytest.mark.parametrize("plan", [None, SEQUENTIAL, PARALLEL], ids=["none", "sequential", "plan"])
def test_requests_are_answered_under_any_plan(gpu: ServedGpu, plan: StreamPlan | None) -> None:
    gpu.call(prepare(1, plan))

    for seed in range(3):
        infer(gpu, 1, seed)


def test_while_one_request_is_computed_the_next_ones_inputs_travel(gpu: ServedGpu) -> None:
    gpu.call(prepare(1, PARALLEL))
    gpu.call(prepare(2, SEQUENTIAL))
    before = len(gpu.driver.operations)
    numbers = [1, 1, 1, 2, 1, 2, 2, 1]

    for seed in range(0, 40, len(numbers)):  # the device does what is not ordered in any order
        for slot in range(len(numbers)):
            gpu.view(slot * SLOT_BYTES, (6, 6)).copy_(given(seed + slot))
        calls = [
            gpu.send(RunExecutable(number, slot * SLOT_BYTES))
            for slot, number in enumerate(numbers)
        ]
        for slot, call in enumerate(calls):
            answer = gpu.answer(call)
            assert isinstance(answer, WorkerAnswer)
            assert isinstance(answer.reply, RunDone)
            assert answer.reply.compute_us >= 0
            check(gpu, seed + slot, slot)

    assert any(op.stream.index == UPLOADS for op in gpu.driver.operations[before:])


def test_a_bad_request_fails_alone_among_those_underway(gpu: ServedGpu) -> None:
    gpu.call(prepare(1, PARALLEL))
    gpu.view(0, (6, 6)).copy_(given(0))

    calls = [gpu.send(RunExecutable(number, 0)) for number in (1, 9, 1)]
    answers = [gpu.answer(call) for call in calls]

    kinds = [each.error_class if isinstance(each, WorkerFailure) else None for each in answers]
    assert kinds == [None, "PreconditionFailed", None]


def test_released_and_unloaded_plans_leave_no_graph_behind(gpu: ServedGpu) -> None:
    for number, plan in enumerate([SEQUENTIAL, PARALLEL, PARALLEL]):
        gpu.call(prepare(number, plan))
    assert len(gpu.driver.live_graphs) == 3

    gpu.call(ReleaseExecutable(1))
    assert len(gpu.driver.live_graphs) == 2
    infer(gpu, 2, seed=0)
    gpu.call(UnloadModel(DIGEST))

    assert not gpu.driver.live_graphs
    assert gpu.fail(RunExecutable(2, 0))[0] == "PreconditionFailed"


def test_facts_stages_and_whole_models_are_measured(gpu: ServedGpu) -> None:
    gpu.call(prepare(1, None))
    facts = gpu.call(FindFacts(KEY))
    assert facts.threads == 8
    assert facts.overheads is not None
    assert facts.overheads.launch_us == pytest.approx(1.0), "as long as a kernel takes there"
    assert len(facts.profiles) == len(PROGRAM.units)

    def stage_us(*groups: tuple[int, ...], threads: int | None = None) -> float:
        return gpu.call(MeasureStage(KEY, Stage(groups), threads)).latency_us

    assert stage_us((0,), (1, 2)) == pytest.approx(2.0), "side by side"
    assert stage_us((0, 1, 2)) == pytest.approx(3.0)
    work = stage_us((0,), threads=1)
    assert 0 < work < 1.0, "432 operations are nothing for 132 multiprocessors"

    found = gpu.call(compared(SEQUENTIAL, PARALLEL)).plans
    sequential, parallel = found
    assert sequential.problem == parallel.problem == ""
    assert parallel.latency_us is not None
    assert sequential.latency_us is not None
    assert parallel.latency_us < sequential.latency_us
    assert parallel.activation_bytes is not None
    assert parallel.activation_bytes > 0
    assert len(gpu.driver.live_graphs) == 1, "only what serves is kept"


def test_onnxruntime_without_cuda_takes_no_part(gpu: ServedGpu) -> None:
    found = gpu.call(compared(SEQUENTIAL, runtimes=("onnxruntime",))).plans

    problem = found[1].problem  # of a build for CPUs, or of one that has CUDA
    assert "built without CUDAExecutionProvider" in problem or "no file" in problem


def test_memory_that_runs_out_for_a_moment_is_made_free(gpu: ServedGpu) -> None:
    fail_launches(gpu.driver, out_of_memory, first=5)

    gpu.call(prepare(1, PARALLEL))

    infer(gpu, 1, seed=0)


def test_running_out_of_memory_fails_one_call_and_no_other(gpu: ServedGpu) -> None:
    gpu.call(prepare(1, SEQUENTIAL))
    fail_launches(gpu.driver, out_of_memory, count=2)

    assert gpu.fail(prepare(2, PARALLEL))[0] == "DeviceOutOfMemory"

    infer(gpu, 1, seed=0)
    gpu.call(prepare(2, PARALLEL))
    infer(gpu, 2, seed=1)


def test_a_candidate_without_room_loses_the_contest(gpu: ServedGpu) -> None:
    units = len(PROGRAM.units)
    fail_launches(gpu.driver, out_of_memory, first=2 * units, count=2)

    found = gpu.call(compared(SEQUENTIAL, PARALLEL)).plans

    assert found[0].latency_us is not None
    assert "ran out of memory" in found[1].problem


@pytest.mark.parametrize(
    "request_",
    [prepare(1, SEQUENTIAL), compared(SEQUENTIAL)],
    ids=["prepare", "compare"],
)
def test_a_poisoned_context_ends_the_worker_and_answers_nobody(
    gpu: ServedGpu, request_: AnyRequest
) -> None:
    fail_launches(gpu.driver, poisoned, first=3)

    number = gpu.send(request_)

    with pytest.raises(ConnectionError):
        gpu.answer(number)
    gpu.close()
    assert isinstance(gpu.error, DeviceLost)
    assert "illegal memory access" in str(gpu.error)
