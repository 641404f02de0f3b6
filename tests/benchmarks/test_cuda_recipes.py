"""Networks that travel without their weights: what is written and what is made of it again."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cuda import recipes
from benchmarks.cuda.library import artefact_of
from benchmarks.cuda.prepare import main as prepare
from benchmarks.cuda.recipes import NoRecipe, follow_recipe, recipe_folder, write_recipe
from benchmarks.networks.network import Network, classifier
from benchmarks.networks.registry import NETWORKS
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.artefact import load_artefact
from braid.engine.ops.dtypes import spec_of
from tests.engine.worker.serving import artefact

IMAGE = TensorType("FP32", (1, 64, 8, 8))


def small_network(kernel: int = 3) -> Network:
    def construct() -> nn.Module:
        return nn.Sequential(nn.Conv2d(64, 32, kernel), nn.Linear(64, 64))

    return classifier("small", construct, 8)


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Network]:
    known = {"small": small_network()}
    monkeypatch.setattr(recipes, "NETWORKS", known)
    return known


def imported(folder: Path, weights: dict[str, Tensor]) -> Path:
    """An artefact with these constants."""
    specs = {name: spec_of(tensor) for name, tensor in weights.items()}
    units = tuple(
        Operator(f"u{i}", "aten.mul", ("x", name), (f"y{i}",)) for i, name in enumerate(weights)
    )
    return artefact(folder, OpGraph("small", {"x": IMAGE}, {"y": "y0"}, specs, units), weights)


def constants() -> dict[str, Tensor]:
    """As an import leaves them: a folded batch norm, parts of a weight, a tensor as it is."""
    seeded = small_network().build().state_dict()
    weight = seeded["0.weight"]
    factors = torch.linspace(-2, 3, 32)
    folded = (weight.double() * factors[:, None, None, None].double()).float()
    return {
        "linear": seeded["1.weight"],
        "folded": folded,
        "0.weight[0:48]": weight[:, :48].clone(),
        "0.weight[48:64]": weight[:, 48:].clone(),
        "bias": torch.arange(32.0),
    }


def test_an_artefact_is_made_again_of_its_recipe_and_seeds(tmp_path: Path) -> None:
    weights = constants()
    recipe = write_recipe("small", imported(tmp_path / "there", weights), tmp_path)

    again = load_artefact(follow_recipe("small", tmp_path))

    assert again.graph == load_artefact(tmp_path / "there").graph
    assert again.report.sha256 == load_artefact(tmp_path / "there").report.sha256
    assert set(again.weights) == set(weights)
    for name, tensor in weights.items():
        if name == "folded":
            torch.testing.assert_close(again.weights[name], tensor, rtol=1e-6, atol=0)
        else:
            assert torch.equal(again.weights[name], tensor), name
    carried = sum(file.stat().st_size for file in recipe.iterdir())
    assert carried < sum(tensor.nbytes for tensor in weights.values()) / 20


def test_weights_that_no_seed_gives_have_no_recipe(tmp_path: Path) -> None:
    there = imported(tmp_path / "there", {"other": torch.ones(64, 64)})

    with pytest.raises(NoRecipe, match="other"):
        write_recipe("small", there, tmp_path)

    assert not recipe_folder("small", tmp_path).exists()


def test_seeds_that_give_other_weights_than_before_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recipe("small", imported(tmp_path / "there", constants()), tmp_path)
    build = Network.build
    monkeypatch.setattr(Network, "build", lambda network: build(network, seed=1))

    with pytest.raises(NoRecipe, match="is not drawn as"):
        follow_recipe("small", tmp_path)

    assert not (tmp_path / "small").exists()


@pytest.mark.ci
def test_a_network_is_prepared_once_and_not_imported_where_it_is_measured(
    tmp_path: Path, networks: dict[str, Network]
) -> None:
    networks["squeezenet"] = NETWORKS["squeezenet"]
    there, carried = tmp_path / "there", tmp_path / "carried"
    (carried / "squeezenet").mkdir(parents=True)  # of an earlier version

    status = prepare(["--networks", "squeezenet", "--models", str(there), "--out", str(carried)])
    made = asyncio.run(artefact_of("squeezenet", carried))

    assert status == 0
    assert sorted(path.name for path in carried.iterdir()) == ["squeezenet", "squeezenet.recipe"]
    one, other = load_artefact(there / "squeezenet"), load_artefact(made)
    assert one.graph == other.graph
    assert all(torch.equal(one.weights[name], tensor) for name, tensor in other.weights.items())
