"""Imported networks without their weights, to carry to a machine with a GPU: 2 MB for five CNNs.

    here    network ──export, import──> artefact ──write_recipe──> NAME.recipe/
    there   NAME.recipe/, network.build() ──follow_recipe──> artefact

    python -m benchmarks.cuda.recipes NAME FOLDER        follows one, in a process of its own

A large constant of an artefact is a tensor of the seeded network, some input channels of one, or
one whose output channels were scaled, as folding a batch norm does. A recipe says which, and holds
the factors and all other constants. Weights are the same bits on every CPU (``build_seeded``).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.networks.registry import NETWORKS
from braid.core.json_form import from_json, to_json
from braid.engine.importer.artefact import load_artefact, write_artefact
from braid.engine.importer.host.report import GRAPH_FILE, REPORT_FILE, read_graph, read_report

SMALL = 2048
"""Elements of a constant that a recipe holds as it is."""

LARGEST_ERROR = 1e-6
"""Difference of a weight that was scaled again, relative to the largest of its tensor."""

LARGEST_DRIFT = 1e-4
"""Relative difference of a tensor's norm from the norm in the recipe."""

_DRAWN_FILE, _KEPT_FILE, _FACTORS_FILE = "drawn.json", "kept.safetensors", "factors.safetensors"
_PART = re.compile(r"(.*)\[(\d+):(\d+)\]")  # names of engine/passes/fusion's parts of weights


class NoRecipe(Exception):
    """A network's weights are not what the seeded network has."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Where a constant comes from: a tensor of the seeded network."""

    source: str
    part: tuple[int, int] | None  # of its input channels, dimension 1; None: all of it
    norm: float

    def tensor(self, seeded: Mapping[str, Tensor], factors: Tensor | None) -> Tensor:
        if self.source not in seeded:
            raise NoRecipe(f"the network has no tensor {self.source!r}")
        tensor = _cut(seeded[self.source], self.part)
        if factors is not None:
            tensor = (tensor.double() * _along_outputs(factors, tensor)).to(tensor.dtype)
        if not math.isclose(_norm(tensor), self.norm, rel_tol=LARGEST_DRIFT):
            raise NoRecipe(f"{self.source!r} is not drawn as where the recipe was written")
        return tensor


def recipe_folder(name: str, folder: Path) -> Path:
    return folder / f"{name}.recipe"


def write_recipe(name: str, artefact: Path, folder: Path) -> Path:
    """Write the recipe of an imported network, in the place of one that is there.

    Raises:
        NoRecipe: a large constant is not a tensor of the seeded network; it has to be exported and
            imported where it runs.
    """
    seeded = NETWORKS[name].build().state_dict()
    kept: dict[str, Tensor] = {}
    drawn: dict[str, Drawn] = {}
    factors: dict[str, Tensor] = {}
    for constant, tensor in load_artefact(artefact).weights.items():
        if tensor.numel() <= SMALL:
            kept[constant] = tensor.clone()
            continue
        drawn[constant], scale = _origin_of(constant, tensor, seeded)
        if scale is not None:
            factors[constant] = scale
    recipe = recipe_folder(name, folder)
    with TemporaryDirectory(dir=folder) as work:
        target = Path(work) / recipe.name
        target.mkdir()
        for file in (GRAPH_FILE, REPORT_FILE):
            shutil.copyfile(artefact / file, target / file)
        save_file(kept, target / _KEPT_FILE)
        save_file(factors, target / _FACTORS_FILE)
        (target / _DRAWN_FILE).write_text(
            json.dumps({name: to_json(origin) for name, origin in drawn.items()})
        )
        shutil.rmtree(recipe, ignore_errors=True)
        target.rename(recipe)
    return recipe


def _origin_of(
    constant: str, tensor: Tensor, seeded: Mapping[str, Tensor]
) -> tuple[Drawn, Tensor | None]:
    """The seeded tensor that a constant is made of, and the factors of its output channels."""
    cut = _PART.fullmatch(constant)
    part = (int(cut[2]), int(cut[3])) if cut else None
    for name, whole in seeded.items():
        source = _cut(whole, part)
        if source.shape != tensor.shape:
            continue
        if torch.equal(source, tensor):
            return Drawn(name, part, _norm(tensor)), None
        factors = _factors(source, tensor)
        if factors is not None:
            return Drawn(name, part, _norm(tensor)), factors
    raise NoRecipe(f"constant {constant!r} is no tensor of the seeded network")


def _cut(tensor: Tensor, part: tuple[int, int] | None) -> Tensor:
    return tensor if part is None or tensor.dim() < 2 else tensor[:, slice(*part)]


def _factors(source: Tensor, tensor: Tensor) -> Tensor | None:
    """What each output channel was multiplied by; None if that is not all."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return None
    for outputs in (1, len(tensor)):  # one is enough to tell most tensors apart
        one, other = (rows[:outputs].flatten(1).double() for rows in (source, tensor))
        factors = (one * other).sum(1) / (one * one).sum(1)
        error = (one * factors[:, None] - other).abs().max() / other.abs().max()
        if not bool(error < LARGEST_ERROR):
            return None
    return factors


def _along_outputs(factors: Tensor, tensor: Tensor) -> Tensor:
    return factors.reshape(-1, *[1] * (tensor.dim() - 1))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def follow_recipe(name: str, folder: Path) -> Path:
    """The artefact of a network whose recipe lies in ``folder``, beside it.

    Raises:
        NoRecipe: the seeded network is not what it was where the recipe was written.
        InvalidArtefact: the recipe's graph is of another version.
    """
    recipe = recipe_folder(name, folder)
    report = read_report(recipe)
    graph = read_graph(recipe, report)
    seeded = NETWORKS[name].build().state_dict()
    factors = load_file(recipe / _FACTORS_FILE)
    drawn = json.loads((recipe / _DRAWN_FILE).read_text())
    weights = load_file(recipe / _KEPT_FILE)
    for constant, origin in drawn.items():
        weights[constant] = from_json(Drawn, origin).tensor(seeded, factors.get(constant))
    with TemporaryDirectory(dir=folder) as work:
        target = Path(work) / name
        write_artefact(target, graph, weights, dataclasses.replace(report, files={}))
        return target.rename(folder / name)


if __name__ == "__main__":
    follow_recipe(sys.argv[1], Path(sys.argv[2]))
