"""Executors against the plain interpreter: any legal plan gives the same numbers."""

import random
from dataclasses import replace

import pytest
import torch

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph
from braid.core.plan import Launch, StreamPlan, sequential_plan, verify_plan
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import CPU_KERNELS
from braid.engine.cpu.lanes import lay_out, lay_out_stage
from braid.engine.passes.specialise import interpret
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.passes.drawing import CONV, Drawing

SHAPE = (1, 16, 6, 6)
SPEC = TensorType("FP32", SHAPE)


executor = executor_of(threads=3)


def random_graph(seed: int, units: int) -> tuple[OpGraph, dict[str, torch.Tensor]]:
    """Convolutions with ReLU and additions; every unit reads one or two earlier values."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    values, draw = ["x"], Drawing(x=SHAPE)
    for index in range(units):
        if rng.random() < 0.5:
            draw.weights[f"w{index}"] = torch.randn(16, 16, 3, 3, generator=generator) * 0.1
            reads = rng.choice(values), f"w{index}"
            made = draw.op("aten.convolution", *reads, **CONV, epilogue=[["aten.relu"]])
        else:
            made = draw.op("aten.add", rng.choice(values), rng.choice(values))
        values.append(made)
    graph, constants = draw.graph(last=values[-1], middle=values[units // 2])
    return replace(graph, specs=dict.fromkeys(values[1:], SPEC)), constants


def random_plan(graph: OpGraph, seed: int, barriers: bool) -> StreamPlan:
    """Random streams; each unit waits for its predecessors on other streams."""
    rng = random.Random(seed)
    stream = [rng.randrange(4) for _ in graph.operators]
    cuts = [i for i in range(1, len(graph)) if barriers and rng.random() < 0.3]
    launches = []
    for unit, needed in enumerate(graph.predecessors()):
        start = max((cut for cut in cuts if cut <= unit), default=0)
        waits = tuple(n for n in needed if stream[n] != stream[unit] and n >= start)
        launches.append(Launch(unit, stream[unit], waits))
    plan = StreamPlan(tuple(launches), streams=4, barriers=tuple(cuts))
    verify_plan(plan, graph.predecessors())
    return plan


@pytest.mark.parametrize("kernels", ["onednn", "winograd"])
@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_any_plan_gives_the_interpreter_s_numbers(
    executor: CpuExecutor, seed: int, barriers: bool, kernels: str
) -> None:
    graph, constants = random_graph(seed, units=20)
    inputs = {"x": torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))}
    choices = {CPU_KERNELS.signature(unit, graph): kernels for unit in graph.operators}
    program = on_kernels(graph, constants, 3, choices)
    segments = in_lanes(program, executor.threads, random_plan(graph, seed, barriers))

    got = run(executor, program, segments, inputs)

    for name, expected in interpret(graph, constants, inputs).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-4)


def test_a_stage_runs_on_the_threads_that_it_was_laid_out_on(executor: CpuExecutor) -> None:
    graph, constants = random_graph(0, units=20)
    program = on_kernels(graph, constants, 3)
    whole = [list(range(len(graph)))]

    for threads in (1, 3, 2):
        env = program.environment({"x": torch.randn(SHAPE).numpy()})
        executor.stage(program, lay_out_stage(program, whole, threads), env)(None)

        assert torch.get_num_threads() == threads


def test_intermediates_are_released_after_their_last_reader(executor: CpuExecutor) -> None:
    graph, constants = random_graph(3, units=12)
    program = on_kernels(graph, constants, 3)
    env = program.environment({"x": torch.randn(SHAPE).numpy()})

    for segment in lay_out(program, sequential_plan(12), executor.threads):
        executor.run_segment(segment, env)

    kept = {name for name, slot in program.slots.items() if env[slot] is not None}
    assert kept == {"x", *constants, *graph.outputs.values()}


def test_a_failing_lane_raises_its_own_error_and_leaves_the_executor_usable(
    executor: CpuExecutor,
) -> None:
    graph = OpGraph(
        name="two lanes",
        inputs={"x": SPEC, "index": TensorType("INT64", (1,))},
        outputs={"a": "a", "b": "b"},
        constants={},
        operators=(
            Operator("a", "aten.relu", ("x",), ("a",)),
            Operator("b", "braid.gather", ("x", "index"), ("b",), {"axis": 1}),
        ),
        specs={"a": SPEC, "b": TensorType("FP32", (1, 1, 6, 6))},
    )
    program = on_kernels(graph, {}, 3)
    plan = StreamPlan((Launch(0, 0), Launch(1, 1)), streams=2)
    segments = in_lanes(program, executor.threads, plan)
    x = torch.randn(SHAPE)

    with pytest.raises(InvalidRequest, match=r"'b' .* cannot use the index 99"):
        run(executor, program, segments, {"x": x, "index": torch.tensor([99])})
    got = run(executor, program, segments, {"x": x, "index": torch.tensor([2])})

    torch.testing.assert_close(got["b"], x[:, 2:3])


def test_threads_go_where_the_work_is() -> None:
    draw = Drawing(x=(1, 64, 56, 56), y=(1, 8, 6, 6))
    graph, _ = draw.static(draw.op("aten.relu", "x"), draw.op("aten.relu", "y"))
    program = on_kernels(graph, {}, 3)
    plan = StreamPlan((Launch(0, 0), Launch(1, 1)), streams=2)
    (segment,) = lay_out(program, plan, threads=4)

    assert segment.threads == (3, 1)


#   x ──> rows 1.. ──> add ──> y       both slices begin behind the start of what they read
#    └──> rows ..-1 ──┘
def test_a_slice_of_an_input_reads_behind_its_start(executor: CpuExecutor) -> None:
    draw = Drawing(x=SHAPE)
    below, above = (
        draw.op("braid.slice", "x", starts=[start], ends=[end], axes=[2], steps=[1])
        for start, end in ((1, 6), (0, 5))
    )
    graph, _ = draw.static(y=draw.op("aten.add", below, above))
    program = on_kernels(graph, {}, executor.threads)
    x = torch.randn(SHAPE)

    got = run(executor, program, in_lanes(program, executor.threads), {"x": x})

    torch.testing.assert_close(got["y"], x[:, :, 1:] + x[:, :, :-1])
