"""Benchmark networks as quantised ONNX files, as ONNX Runtime's own tool makes them.

network.onnx ──quantize_static, seeded inputs──> Q/DQ nodes: activations u8, weights s8 by channel
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
    shape_inference,
)

from benchmarks.networks.network import Network

BATCHES = 4
"""Inputs that ranges are taken from; each is of one row."""


class _SeededInputs(CalibrationDataReader):  # type: ignore[misc]  # has no types
    """The inputs of a benchmark's network, with seeds of their own."""

    def __init__(self, network: Network) -> None:
        self._left = [
            dict(
                zip(
                    network.input_names,
                    (tensor.numpy() for tensor in network.example_inputs(1, seed=seed)),
                    strict=True,
                )
            )
            for seed in range(BATCHES)
        ]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def export_quantised(network: Network, model: Path, path: Path) -> Path:
    """Write the ONNX file ``model`` of a network as a quantised one to ``path``; return that."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        shape_inference.quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            _SeededInputs(network),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
    return path
