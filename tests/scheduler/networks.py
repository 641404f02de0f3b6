"""Blocks of real networks, drawn here, and the paper's graphs where they are at hand."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.structures import PAPER_GRAPHS, Structure, paper_graph
from braid.scheduler.units import UnitGraph

# Inception-E of Inception V3, IOS Table 1 (n = 11, d = 6):
#
#   in ─> 0 ──────────────────────────────┐
#   in ─> 1 (1x1) ─┬─> 2 (1x3) ───────────┤
#                  └─> 3 (3x1) ───────────┤
#   in ─> 4 ─> 5 ─┬─> 6 (1x3) ────────────┼─> 10 (concat)
#                 └─> 7 (3x1) ────────────┤
#   in ─> 8 (pool) ─> 9 ──────────────────┘
INCEPTION_E = [[], [], [1], [1], [], [4], [5], [5], [], [8], [0, 2, 3, 6, 7, 9]]

# Fire module of SqueezeNet with a bypass convolution (n = 6, d = 3):
#
#   in ─> 0 (squeeze) ─┬─> 1 (1x1) ─┬─> 3 (concat) ─> 5 (add)
#                      └─> 2 (3x3) ─┘                 │
#   in ─> 4 (bypass) ─────────────────────────────────┘
FIRE_WITH_BYPASS = [[], [0], [0], [1, 2], [], [3, 4]]


def paper_block(network: str, index: int) -> UnitGraph:
    """One block of a graph of the IOS authors; skips the test where the graphs are not at hand."""
    structure = paper_network(network)
    bounds = _block_bounds(network)
    return structure.units.restrict(range(bounds[index], bounds[index + 1]))


def paper_network(network: str) -> Structure:
    """A graph of the IOS authors; skips the test where the graphs are not at hand."""
    path = _folder() / f"{network}.json"
    if not path.exists():
        pytest.skip(f"needs the IOS authors' graph {path.name} (set BRAID_PAPER_GRAPHS)")
    return paper_graph(path)


def _folder() -> Path:
    return Path(os.environ.get("BRAID_PAPER_GRAPHS", PAPER_GRAPHS))


def _block_bounds(network: str) -> list[int]:
    document = json.loads((_folder() / f"{network}.json").read_text())
    bounds = [0]
    for block in document["blocks"]:
        bounds.append(bounds[-1] + block["n"])
    return bounds
