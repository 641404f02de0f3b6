"""Networks whose activations are quantised by what runs through them, against ONNX Runtime."""

from collections import Counter
from pathlib import Path

import onnxruntime
import pytest
import torch

from braid.engine.cpu.device_key import has_integer_kernels
from braid.engine.ops.session_run import new_session
from tests.engine.cpu.executors import on_kernels
from tests.engine.quantised.models import quantised_by_data
from tests.engine.quantised.test_calibrated import run_bound
from tests.engine.quantised.test_networks import example, units_of

ON_INTEGERS = ("braid.matmul_integer", "braid.convolution_integer", "braid.quantise")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", ["residual", "attention"])
def test_results_are_those_of_onnxruntime(name: str, per_channel: bool, tmp_path: Path) -> None:
    file = quantised_by_data(name, tmp_path, per_channel=per_channel)
    graph, constants = units_of(file, on_integers=has_integer_kernels())
    x = example(graph)
    session = new_session(file, onnxruntime.SessionOptions())
    (wanted,) = session.run(None, {"x": x.numpy()})

    (got,) = run_bound((graph, constants), {"x": x}, threads=2).values()

    step = abs(wanted).max() / 64
    torch.testing.assert_close(got, torch.from_numpy(wanted), rtol=0, atol=float(step))


@pytest.mark.skipif(not has_integer_kernels(), reason="the CPU has no instructions for it")
def test_sums_and_quantisations_run_on_onednn(tmp_path: Path) -> None:
    graph, constants = units_of(quantised_by_data("residual", tmp_path), on_integers=True)

    program = on_kernels(graph, constants)

    found = Counter(
        (op.kind, unit.kernel.variant)
        for op, unit in zip(graph.operators, program.units, strict=True)
        if op.kind in ON_INTEGERS
    )
    assert {variant for _, variant in found} == {"onednn"}, found
    assert len(found) == 3
