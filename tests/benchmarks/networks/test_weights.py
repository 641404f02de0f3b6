"""Seeded weights make a network that a numerical comparison can learn something from."""

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import NETWORKS
from benchmarks.networks.weights import build_seeded
from tests.benchmarks.networks.names import EVERY_NETWORK


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
