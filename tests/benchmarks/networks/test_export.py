import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.networks import NETWORKS
from benchmarks.networks.export import export_onnx
from tests import ROOT
from tests.benchmarks.networks.names import EVERY_NETWORK

Exported = Callable[[str], Path]


@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_onnxruntime_agrees_with_torch_at_batch_1_and_3(name: str, exported: Exported) -> None:
    network = NETWORKS[name]
    model = network.build()
    one_thread = onnxruntime.SessionOptions()
    one_thread.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(exported(name), one_thread)
    for batch in (1, 3):
        inputs = network.example_inputs(batch)
        expected = model(*inputs).numpy()

        feed = dict(zip(network.input_names, (x.numpy() for x in inputs), strict=True))
        (answer,) = session.run(list(network.output_names), feed)

        assert np.abs(answer - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_only_the_batch_is_open_and_nothing_lies_outside_the_file(
    name: str, exported: Exported
) -> None:
    model = onnx.load(exported(name), load_external_data=False)
    onnx.checker.check_model(model)

    for value in (*model.graph.input, *model.graph.output):
        batch, *others = value.type.tensor_type.shape.dim
        assert batch.dim_param == "batch"
        assert all(dim.dim_value > 0 for dim in others)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [value.name for value in model.graph.input] == list(NETWORKS[name].input_names)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("googlenet", marks=pytest.mark.ci)])
def test_the_same_seed_gives_the_same_bytes(name: str, exported: Exported, tmp_path: Path) -> None:
    again = export_onnx(name, tmp_path / "again.onnx")
    other = export_onnx(name, tmp_path / "other.onnx", seed=1)

    assert digest(again) == digest(exported(name))
    assert digest(other) != digest(again)


@pytest.mark.ci
def test_another_process_with_another_thread_count_writes_the_same_bytes(
    exported: Exported, tmp_path: Path
) -> None:
    arguments = ["squeezenet", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.networks.export", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, cwd=ROOT)

    assert digest(tmp_path / "squeezenet.onnx") == digest(exported("squeezenet"))
