"""Executors of a CPU, closed when the test or module that uses one has ended; programs for them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from braid.core.graph import OpGraph
from braid.core.plan import StreamPlan, sequential_plan
from braid.core.schedule import USUAL_KERNELS
from braid.engine.cpu.executor import CpuExecutor, run_kernel
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.lanes import lay_out
from braid.engine.cpu.native.find import find_native
from braid.engine.ops.dtypes import array_of, arrays_of, spec_of, tensor_of, tensors_of
from braid.engine.passes.body import Weights
from braid.engine.passes.specialise import specialise, static_inputs
from braid.engine.program.kernel import Kernel, PackedWeights
from braid.engine.program.program import Program


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """In folders whose conftest.py imports it: equal random numbers, no gradients, own threads."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def executor_of(scope: Literal["module", "function"] = "module", **options: Any) -> Any:
    """A fixture of one, which a test module calls ``executor``."""

    @pytest.fixture(scope=scope, name="executor")
    def executor() -> Iterator[CpuExecutor]:
        made = CpuExecutor(**options)
        with torch.inference_mode():
            yield made
        made.close()

    return executor


def on_kernels(
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    threads: int = 2,
    choices: Mapping[str, str] = USUAL_KERNELS,
) -> Program:
    """A program that shares no packed weights with another one."""
    return bind_on_cpu(graph, constants, PackedWeights(), threads, choices)


def in_lanes(program: Program, threads: int, plan: StreamPlan | None = None) -> LanePlan:
    """What an executor runs; without a plan, one unit after the other."""
    return LanePlan(lay_out(program, plan or sequential_plan(len(program.units)), threads))


def run(
    executor: CpuExecutor, program: Program, plan: LanePlan, inputs: Weights, **how: Any
) -> Weights:
    """A run on tensors; with ``outputs``, it fills and returns them."""
    outputs: Weights | None = how.pop("outputs", None)
    given = None if outputs is None else arrays_of(outputs)
    found = executor.run(program, plan, arrays_of(inputs), outputs=given, **how)
    assert given is None or found is given
    return tensors_of(found) if outputs is None else outputs


def on_tensors(kernel: Kernel, threads: int) -> Callable[..., Any]:
    """A kernel from tensors to a tensor, or to several."""

    def function(*operands: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        arrays = [None if tensor is None else array_of(tensor) for tensor in operands]
        results = tuple(map(tensor_of, run_kernel(kernel, threads, arrays)))
        return results if len(results) > 1 else results[0]

    return function


def answered(
    template: OpGraph, weights: Weights, inputs: Weights, executor: CpuExecutor
) -> Mapping[str, Tensor]:
    """Outputs of the kernels that serve, chosen as for a request."""
    static = {name: inputs[name] for name in static_inputs(template)}
    specs = {name: spec_of(tensor) for name, tensor in inputs.items()}
    program = on_kernels(*specialise(template, weights, specs, static), executor.threads)
    return run(executor, program, in_lanes(program, executor.threads), inputs)


@pytest.fixture(params=[0, 1, 2], ids=["4 lanes", "8 lanes", "16 lanes"])
def vector_width(request: pytest.FixtureRequest) -> Iterator[None]:
    """The part in C with vectors of this width at most."""
    native = find_native()
    assert native is not None
    native.braid_limit_vectors(request.param)
    yield
    native.braid_limit_vectors(2)
