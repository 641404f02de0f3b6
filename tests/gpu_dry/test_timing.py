"""Device times of the benchmark on a GPU: a timed run is one replay, without copies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cuda import peers
from benchmarks.cuda.agenda import GRAPH, MAX_AUTOTUNE, REDUCE_OVERHEAD
from benchmarks.cuda.ours import OurPlan
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.on_gpu import OnGpu
from braid.server.cli.local.demo_networks.network import Network
from tests.engine.cuda.graphs import random_plan
from tests.engine.cuda.test_on_gpu import random_program, x
from tests.gpu_dry import device
from tests.gpu_dry.launches import NotingDriver


class Scaled(nn.Module):
    """Twice its input, as a kernel that Inductor compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))

    def draw_weights(self, _: object) -> None:
        with torch.no_grad():
            self.weight.fill_(2.0)

    def forward(self, image: Tensor) -> Tensor:
        return image * self.weight


IMAGE = Network("scaled", Scaled, lambda batch, _: (torch.ones(batch, 1, 2, 2),), ("x",), ("y",))


def check_peer(name: str) -> None:
    with torch.inference_mode(False), torch.no_grad():
        peer, _ = peers.fastest(IMAGE, name, 1, "fp32", patience_s=120.0)
        operations = device.between_timed_events(peer.gpu_ms)

    assert operations == ["replay"]


@pytest.mark.parametrize("name", [GRAPH, REDUCE_OVERHEAD, MAX_AUTOTUNE])
def test_the_timed_run_of_a_peer_is_one_replay(name: str) -> None:
    check_peer(name)


def with_its_own_graphs(model: nn.Module, inputs: Sequence[Tensor]) -> peers.Call:
    function = peers.frozen(model, "reduce-overhead")

    def call() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return function(*inputs)

    return call


def test_inputs_copied_inside_a_timed_replay_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, REDUCE_OVERHEAD, with_its_own_graphs)
    with pytest.raises(AssertionError, match=r"Copy|memcpy"):
        check_peer(REDUCE_OVERHEAD)


def test_the_timed_run_of_a_plan_is_one_replay(
    executor: CudaExecutor, driver: NotingDriver
) -> None:
    program = random_program(4, driver)
    plan = executor.prepare(program, random_plan(program, 4, barriers=False))
    timed = OurPlan(OnGpu(executor, plan, ()), x(0))
    timed.warm_up()
    operations = device.between_timed_events(timed.gpu_ms)

    assert operations == ["replay"]
