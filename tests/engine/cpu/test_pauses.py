"""Runs that let others run in between, on the same kernels."""

import pytest
import torch

from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.segments import find_runner
from braid.engine.passes.specialise import interpret
from braid.engine.runtime.yielding import YieldToRequests
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.cpu.test_lanes import SHAPE, random_graph, random_plan

executor = executor_of(threads=2, slice_us=0.001)


@pytest.mark.skipif(find_runner() is None, reason="without the part in C, few steps pause")
@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_cut_at_every_step_and_those_in_between_give_the_right_numbers(
    executor: CpuExecutor, seed: int, barriers: bool
) -> None:
    graph, constants = random_graph(seed, units=20)
    generator = torch.Generator().manual_seed(seed)
    measured, asked = (torch.randn(SHAPE, generator=generator) for _ in range(2))
    program = on_kernels(graph, constants)
    plan = random_plan(graph, seed, barriers)
    interrupted, serving = (in_lanes(program, executor.threads, plan) for _ in range(2))
    answers = []

    class Request(YieldToRequests):
        def __call__(self) -> bool:
            answers.append(run(executor, program, serving, {"x": asked}))
            return True

    got = run(executor, program, interrupted, {"x": measured}, pause=Request())

    assert len(answers) >= 3
    wanted = interpret(graph, constants, {"x": asked})
    for name, expected in interpret(graph, constants, {"x": measured}).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-4)
        for answer in answers:
            torch.testing.assert_close(answer[name], wanted[name], rtol=1e-4, atol=1e-4)
