"""Plans that find their memory bound by the run before: right answers whatever ran in between.

x ──> conv + relu ──> mean ──> dense ──> squashed        outputs: dense, squashed
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from braid.core.errors import RunStopped
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.segments import find_runner
from braid.engine.ops.dtypes import arrays_of, tensor_of, tensors_of
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.stopping import StopSignal, stop_signal
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels
from tests.engine.cpu.test_memory import check, slot
from tests.engine.passes.drawing import CONV, Drawing

pytestmark = pytest.mark.skipif(find_runner() is None, reason="needs the part in C")


executor = executor_of(threads=2, scope="function")


class Net:
    """A program with its plan, and what it should answer."""

    def __init__(self, executor: CpuExecutor, channels: int = 3, extent: int = 6) -> None:
        self.shape = (2, channels, extent, extent)
        self.weights = {
            "kernel": torch.randn(4, channels, 3, 3) * 0.1,
            "matrix": torch.randn(10, 4),
        }
        draw = Drawing(x=self.shape)
        draw.weights |= self.weights
        conv = draw.op("aten.convolution", "x", "kernel", **CONV, epilogue=[["aten.relu"]])
        mean = draw.op("aten.mean", conv, dims=[2, 3], keepdim=False)
        dense = draw.op("aten.linear", mean, "matrix")
        static = draw.static(dense=dense, squashed=draw.op("aten.sigmoid", dense))
        self.program: Program = on_kernels(*static, executor.threads)
        self.plan = in_lanes(self.program, executor.threads)

    def memory(self) -> tuple[Arrays, Arrays]:
        x = torch.randn(self.shape)
        return {"x": x.numpy()}, arrays_of(slot(self.expected(x)))

    def expected(self, x: Tensor) -> dict[str, Tensor]:
        conv = conv2d(x.double(), self.weights["kernel"].double(), padding=1).relu()
        dense = conv.mean((2, 3)) @ self.weights["matrix"].double().t()
        return {"dense": dense, "squashed": dense.sigmoid()}

    def run(self, executor: CpuExecutor, memory: tuple[Arrays, Arrays]) -> None:
        """Run on other values in the same memory, and check the answer."""
        inputs, outputs = memory
        x = tensor_of(inputs["x"]).normal_()
        for output in outputs.values():
            output.fill(np.nan)
        assert executor.run(self.program, self.plan, inputs, outputs=outputs) is outputs
        check(tensors_of(outputs), self.expected(x))


@pytest.mark.parametrize("channels", [3, 16, 17])
def test_a_plan_is_bound_once_its_memory_comes_again(executor: CpuExecutor, channels: int) -> None:
    net = Net(executor, channels)
    memory = net.memory()

    was_bound = []
    for _ in range(4):
        net.run(executor, memory)
        was_bound.append(net.plan.bound is not None)

    reordered_by_torch = channels > 16
    assert was_bound == ([False] * 4 if reordered_by_torch else [False, True, True, True])


def test_answers_are_right_whatever_else_ran_in_between(executor: CpuExecutor) -> None:
    net, other = Net(executor), Net(executor, extent=40)
    first, second = net.memory(), net.memory()
    for _ in range(3):
        net.run(executor, first)
    assert net.plan.bound is not None

    net.run(executor, second)
    net.run(executor, first)  # its addresses were those of the other memory
    net.run(executor, first)
    assert net.plan.bound is not None
    other.run(executor, other.memory())  # larger, so that activation memory moves
    net.run(executor, first)
    net.run(executor, first)
    got = executor.run(net.program, net.plan, first[0])
    check(tensors_of(got), net.expected(tensor_of(first[0]["x"])))
    net.run(executor, first)
    x = torch.randn(net.shape)
    got = executor.run(net.program, net.plan, {"x": x.numpy()}, outputs=first[1])
    check(tensors_of(got), net.expected(x))


def test_a_bound_run_that_is_to_end_does_not_begin(executor: CpuExecutor) -> None:
    net = Net(executor)
    memory = net.memory()
    for _ in range(3):
        net.run(executor, memory)
    signal = StopSignal()
    signal.stop("too late")
    token = stop_signal.set(signal)
    try:
        with pytest.raises(RunStopped, match="too late"):
            executor.run(net.program, net.plan, memory[0], outputs=memory[1])
    finally:
        stop_signal.reset(token)
    net.run(executor, memory)
