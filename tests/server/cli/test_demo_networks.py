"""Networks of the demo as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from braid.server.cli.local import demo
from braid.server.cli.local.demo_networks import NETWORKS, write_onnx


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("squeezenet", {"logits": ["batch", 1000]}),
        ("classifier_and_detector", {"logits": ["batch", 100], "boxes": ["batch", 5, 5, 5]}),
    ],
)
def test_a_file_has_the_answers_of_its_network(
    name: str, shapes: dict[str, list[object]], tmp_path: Path
) -> None:
    network, path = NETWORKS[name], tmp_path / "network.onnx"
    write_onnx(network, path)
    image = network.image(3)

    expected = network.build()(image)
    expected = expected if isinstance(expected, tuple) else (expected,)
    answers = onnxruntime.InferenceSession(path).run(None, {"image": image.numpy()})

    for answer, wanted in zip(answers, expected, strict=True):
        assert not torch.allclose(wanted[0], wanted[1], rtol=1e-3), "rows look alike"
        np.testing.assert_allclose(answer, wanted.numpy(), atol=1e-4 * float(wanted.abs().max()))
    found = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.output
    }
    assert found == shapes


def test_the_command_offers_these_networks() -> None:
    assert set(demo.NETWORKS) == set(NETWORKS)
