"""Long work on the device's thread pauses, so that requests go first."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

from core.tensor import TensorSpec
from engine.executor.cpu import CpuExecutor
from engine.executor.program import bind
from engine.kernels.kernel import PackedWeights
from engine.onnx import lower
from engine.passes import run_passes
from engine.specialise import interpret, specialise
from engine.timing.activations import Activations
from tests.server.service import small_cnn


def test_binding_interpreting_and_profiling_pause_at_every_unit(tmp_path: Path) -> None:
    pauses: list[None] = []

    def pause() -> bool:
        pauses.append(None)
        return False

    def paused() -> int:
        count = len(pauses)
        pauses.clear()
        return count

    template, weights = run_passes(*lower(onnx.load(small_cnn(tmp_path / "cnn.onnx"))))
    specs = {"x": TensorSpec("FP32", (1, 3, 16, 16))}
    inputs = {"x": torch.zeros(1, 3, 16, 16)}
    with torch.inference_mode():
        graph, constants = specialise(template, weights, specs, None, pause)
        assert paused() >= len(template.operators)
        program = bind(graph, constants, PackedWeights(), 1, pause=pause)
        assert paused() >= len(graph.operators)
        interpret(graph, constants, inputs, pause)
        assert paused() == len(graph.operators)
        executor = CpuExecutor(threads=1)
        Activations(program, inputs, executor, 1 << 20, pause)
        assert paused() >= len(graph.operators)
        executor.close()
