"""Networks of the benchmarks: drawn, published, exported, with weights of a seed."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import NETWORKS
from benchmarks.networks.export import export_onnx
from benchmarks.networks.randwire import RandomStage, small_world
from benchmarks.networks.weights import build_seeded
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


# torchvision's counts without auxiliary classifiers; NASNet-A from its PyTorch port (as in timm);
# BERT-base uncased as in transformers, 109,482,240, less the pooler's 590,592;
# T5-base's encoder likewise.
PUBLISHED_PARAMETERS = {
    "squeezenet": 1_235_496,
    "googlenet": 6_624_904,
    "inception_v3": 23_834_568,
    "nasnet_mobile": 5_289_978,
    "nasnet_large": 88_753_150,
    "mnasnet": 2_218_512,
    "mnasnet_pair": 2 * 2_218_512,
    "shufflenet": 1_366_792,
    "resnet50": 25_557_032,
    "bert_base": 108_891_648,
    "t5_encoder": 109_628_544,
}
# Mean and deviation over wirings, RandWire paper, tables 2 and 3.
RANDWIRE_PARAMETERS = {"randwire": (61.5e6, 1.32e6), "randwire_small": (5.6e6, 0.1e6)}
OUTPUT_SHAPES = {
    "mnasnet_pair": (2000,),
    "bert_base": (128, 768),
    "t5_encoder": (128, 768),
    "deepfm": (1,),
    "detr_like": (144, 92),
}


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return NETWORKS[name].construct().eval()


def parameters(name: str) -> int:
    return sum(p.numel() for p in on_meta(name).parameters())


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_has_the_published_number_of_parameters(name: str) -> None:
    assert parameters(name) == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", RANDWIRE_PARAMETERS)
def test_random_wiring_has_about_the_published_number_of_parameters(name: str) -> None:
    mean, deviation = RANDWIRE_PARAMETERS[name]
    assert parameters(name) == pytest.approx(mean, abs=deviation)


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_one_row_of_output_per_row_of_input(name: str) -> None:
    network = NETWORKS[name]
    inputs = [x.to("meta") for x in network.example_inputs(2)]
    assert on_meta(name)(*inputs).shape == (2, *OUTPUT_SHAPES.get(name, (1000,)))


@pytest.mark.parametrize("seed", range(50))
def test_draws_the_graph_that_networkx_draws(seed: int) -> None:
    nodes, degree = random.Random(seed).choice([(8, 2), (16, 4), (32, 4), (6, 4)])
    oracle = networkx.connected_watts_strogatz_graph(
        nodes, degree, 0.75, tries=1000, seed=random.Random(seed)
    )

    edges = small_world(nodes, degree, 0.75, random.Random(seed))

    assert edges == sorted((min(e), max(e)) for e in oracle.edges)


def test_nearly_complete_graphs_do_not_loop_forever() -> None:
    edges = small_world(5, 4, 1.0, random.Random(0))
    assert len(edges) == 10


#   0 ──> 1 ──> 3      2 and 3 have no successor
#    └──> 2
def test_a_stage_reads_its_input_once_and_averages_what_nothing_reads() -> None:
    stage = RandomStage([(0, 1), (0, 2), (1, 3)], nodes=4, inputs=2, outputs=4)

    assert stage.predecessors == [[], [0], [0], [1]]
    assert stage.last == [2, 3]
    assert [node.depthwise.stride for node in stage.nodes] == [(2, 2), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_activations_neither_explode_nor_vanish(name: str) -> None:
    network = NETWORKS[name]
    model = network.build()
    deviations: dict[str, float] = {}

    def record(path: str, module: nn.Module) -> None:
        def keep(_: nn.Module, __: object, output: Tensor) -> None:
            deviations[path] = output.std().item()

        module.register_forward_hook(keep)

    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.in_features == 1:
            continue  # DeepFM's fields: one number each, meant to be small
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d | nn.LayerNorm):
            record(path, module)
    model(*network.example_inputs(2))

    assert {p: d for p, d in deviations.items() if not 0.1 < d < 10} == {}


@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_rows_differ_and_the_softmax_is_not_saturated(name: str) -> None:
    network = NETWORKS[name]
    output = network.build()(*network.example_inputs(4)).flatten(1)

    if output.shape[1] > 1:
        assert torch.softmax(output[:, :1000], dim=1).max() < 0.5
    for row in range(1, 4):
        # 50 times the error that comparisons allow: a mixed-up row cannot pass for a right one.
        assert (output[row] - output[0]).abs().max() > 0.005 * output.abs().max()


def test_a_layer_without_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="Bilinear"):
        build_seeded(lambda: nn.Sequential(nn.Bilinear(1, 1, 1)), 0)
