"""Long work on the device's thread pauses, so that requests go first."""

import os
import threading
import time
from pathlib import Path

import onnx
import pytest
import torch

from braid.core.errors import RunStopped
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.onnx.lowering import lower
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret, specialise
from braid.engine.program.kernel import PackedWeights
from braid.engine.runtime.yielding import NetClock, YieldToRequests, in_thread, no_pause
from braid.engine.timing.recorded_inputs import Activations
from tests.models.small import small_cnn


def test_binding_interpreting_and_profiling_pause_at_every_unit(tmp_path: Path) -> None:
    pauses: list[None] = []

    class Counting(YieldToRequests):
        def __call__(self) -> bool:
            pauses.append(None)
            return False

    pause = Counting()

    def paused() -> int:
        count = len(pauses)
        pauses.clear()
        return count

    template, weights = run_passes(*lower(onnx.load(small_cnn(tmp_path / "cnn.onnx"))))
    specs = {"x": TensorType("FP32", (1, 3, 16, 16))}
    inputs = {"x": torch.zeros(1, 3, 16, 16)}
    with torch.inference_mode():
        graph, constants = specialise(template, weights, specs, None, pause)
        assert paused() >= len(template.operators)
        program = bind_on_cpu(graph, constants, PackedWeights(), 1, pause=pause)
        assert paused() >= len(graph.operators)
        interpret(graph, constants, inputs, pause)
        assert paused() == len(graph.operators)
        executor = CpuExecutor(threads=1)
        Activations(program, arrays_of(inputs), executor, 1 << 20, pause)
        assert paused() >= len(graph.operators)
        executor.close()


def test_a_time_counts_without_the_pauses_in_it() -> None:
    class Slow(YieldToRequests):
        def __call__(self) -> bool:
            time.sleep(0.002)
            return True

    net_clock = NetClock(Slow())
    net_clock()
    start = time.perf_counter_ns()
    net_clock()
    end = time.perf_counter_ns()

    assert net_clock.count == 2
    assert 0 <= net_clock.net_time(start, end).us < (end - start) / 1e3 - 1900


def test_a_time_is_never_below_what_the_clock_can_tell() -> None:
    us, was_interrupted = NetClock(no_pause).net_time(5, 5)

    assert us > 0
    assert not was_interrupted


def test_only_operators_make_tensors_on_the_device_that_is_interpreted_on() -> None:
    seen: list[torch.device] = []

    class Making(YieldToRequests):
        def __call__(self) -> bool:
            seen.append(torch.empty(1).device)
            return False

    made = Operator(
        "y", "braid.constant_of_shape", (), ("y",), {"shape": [2], "value": 1.0, "dtype": "FP32"}
    )
    graph = OpGraph("one", {}, {"y": "y"}, {}, (made,), {"y": TensorType("FP32", (2,))})

    results = interpret(graph, {}, {}, Making(), torch.device("meta"))

    assert results["y"].is_meta
    assert seen == [torch.device("cpu")], "requests that are answered in a pause expect it so"


def test_work_that_outlives_its_caller_writes_into_no_other_file() -> None:
    may_end, request = threading.Event(), os.eventfd(1)
    before = set(threading.enumerate())

    class Stopped(YieldToRequests):
        arrivals = request

        def answer(self) -> bool:
            raise RunStopped("stopped")

    with pytest.raises(RunStopped):
        in_thread(may_end.wait, Stopped())
    other = os.eventfd(0, os.EFD_NONBLOCK)  # would get a number that was closed too early
    may_end.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()

    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    os.close(other)
    os.close(request)
