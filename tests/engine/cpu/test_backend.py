"""Measurements on the CPU as a worker asks for them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import torch

from braid.core.graph import OpGraph
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.stage_timer import LONG_US, SCALING
from braid.engine.device import AskedStage, FinishedRun
from braid.engine.program.kernel import PackedWeights
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.threads import usable_cpus
from braid.engine.runtime.yielding import no_pause
from tests.engine.cpu.test_kernels import convolution_attributes, unit_graph
from tests.engine.timing.running import finish


def convolution(extent: int) -> tuple[OpGraph, dict[str, torch.Tensor]]:
    operands = {"x": torch.empty(1, 64, extent, extent), "w": torch.ones(64, 64, 3, 3), "b": None}
    return unit_graph("aten.convolution", operands, ["w"], convolution_attributes())


@pytest.mark.parametrize(("extent", "is_long"), [(224, True), (8, False)])
def test_a_long_unit_is_not_measured_on_one_thread(extent: int, is_long: bool) -> None:
    backend = CpuBackend(CpuExecutor(threads=1))
    graph, constants = convolution(extent)

    with torch.inference_mode():
        program = backend.bind(graph, constants, PackedWeights(), no_pause)

        def measured(threads: int | None) -> float:
            asked = AskedStage([[0]], threads)
            inputs = {"x": np.zeros((1, 64, extent, extent), np.float32)}
            timing, _ = finish(backend.measure(program, lambda: inputs, asked, no_pause))
            return timing.latency_us

        on_all, on_one = measured(None), measured(1)
    backend.close()

    assert (on_all > LONG_US) == is_long
    assert (on_one == SCALING * on_all) == is_long


def test_the_device_key_counts_the_cores_from_before_threads_were_pinned() -> None:
    cpus = usable_cpus()

    def key_of_a_pinned_device() -> str:
        backend = CpuBackend(CpuExecutor(1, cpus[:1]))
        try:
            return backend.device_key()
        finally:
            backend.close()

    with ThreadPoolExecutor(1) as pool:  # its thread stays pinned
        key = pool.submit(key_of_a_pinned_device).result()

    assert f":cores={len(cpus)}:" in key
    assert ":threads=1:" in key


class _Recorded:
    """Stands for a plan and for a model in another runtime: notes who runs it, and where to."""

    activation_bytes = None

    def __init__(self) -> None:
        self.runs: list[tuple[int, object]] = []

    def run_into(self, inputs: Arrays, outputs: Arrays) -> None:
        self.runs.append((threading.get_ident(), outputs))
        for array in outputs.values():
            array.fill(3.0)

    def begin(self, inputs: Arrays, outputs: Arrays) -> FinishedRun:
        self.run_into(inputs, outputs)
        return FinishedRun(outputs)


def test_contenders_run_on_the_calling_thread_into_the_same_memory_as_requests_do() -> None:
    backend = CpuBackend(CpuExecutor(threads=1))
    outputs = {"y": np.zeros(2)}

    for contend in (backend.contender, backend.whole_contender):
        recorded = _Recorded()
        contender = contend(cast(Any, recorded), outputs)
        for _ in range(2):
            assert contender.run({}, no_pause).outputs["y"].tolist() == [3.0, 3.0]
        assert recorded.runs == [(threading.get_ident(), outputs)] * 2
        assert all(given is outputs for _, given in recorded.runs)
    backend.close()
