"""Networks of the demo as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from braid.server.cli.local.demo_networks.network import NETWORKS
from braid.server.cli.local.demo_networks.onnx_file import write_onnx


def test_two_networks_over_one_image_are_one_file_with_both_answers(tmp_path: Path) -> None:
    network = NETWORKS["classifier_and_detector"]
    path = write_onnx(network, tmp_path / "both.onnx")
    inputs = network.example_inputs(3)

    with torch.no_grad():
        expected = network.build()(*inputs)
    answers = onnxruntime.InferenceSession(path).run(None, {"image": inputs[0].numpy()})

    for answer, wanted in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer, wanted.numpy(), atol=1e-4 * float(wanted.abs().max()))
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.output
    }
    assert shapes == {"logits": ["batch", 100], "boxes": ["batch", 5, 6, 6]}
