from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from braid.server.cli.local import demo
from braid.server.cli.local.demo_networks import NETWORKS, write_onnx


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_has_outputs_of_the_declared_shapes_that_depend_on_the_image(
    name: str, tmp_path: Path
) -> None:
    network, path = NETWORKS[name], tmp_path / "network.onnx"
    write_onnx(network, path)
    image = np.random.default_rng(0).random((2, 3, network.side, network.side), np.float32)
    image[1] *= np.linspace(0, 1, network.side, dtype=np.float32)

    onnx.checker.check_model(path, full_check=True)
    answers = onnxruntime.InferenceSession(path).run(list(network.outputs), {"image": image})

    for answer, extents in zip(answers, network.outputs.values(), strict=True):
        assert answer.shape == (2, *extents)
        assert 1e-3 < abs(answer).max() < 1e3
        assert abs(answer[0] - answer[1]).max() > 1e-2 * abs(answer).max()


def test_the_command_offers_these_networks() -> None:
    assert set(demo.NETWORKS) == set(NETWORKS)
