"""The same network as ONNX and as ``.pt2`` gives the same schedule units, those of the papers."""

import re
import warnings
from collections import defaultdict
from pathlib import Path

import onnx
import pytest
import torch

from benchmarks.networks import NETWORKS
from benchmarks.networks.export import export_onnx, export_pt2
from braid.core.graph import OpGraph
from braid.scheduler.blocks import split_blocks
from braid.scheduler.dag import Dag
from braid.scheduler.matching import width
from braid.scheduler.units import UnitGraph
from tests.engine.onnx.oracle import static_graph as of_model
from tests.engine.pt2.programs import static_graph

BATCH = 2
FAST = "squeezenet"


def of_onnx(path: Path) -> OpGraph:
    return of_model(onnx.load(path), BATCH)[0]


def both(name: str, folder: Path) -> tuple[OpGraph, OpGraph]:
    """From one program, as torch.onnx writes it and as torch.export saves it."""
    pt2 = export_pt2(name, folder / f"{name}.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = folder / f"{name}.onnx"
        torch.onnx.export(torch.export.load(pt2), f=file, verbose=False, external_data=False)
    return of_onnx(file), static_graph(pt2, BATCH)[0]


def assert_same_units(a: OpGraph, b: OpGraph) -> None:
    """Kind, attributes, shapes of results, and wiring of every unit."""
    found = [
        [
            (op.kind, dict(op.attributes), before, [str(graph.spec(v)) for v in op.outputs])
            for op, before in zip(graph.operators, graph.predecessors(), strict=True)
        ]
        for graph in (a, b)
    ]
    assert len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        assert ours == theirs
    assert UnitGraph.from_graph(a).signatures == UnitGraph.from_graph(b).signatures


def block_widths(graph: OpGraph) -> list[tuple[int, int]]:
    """(units, width) of each block."""
    units = UnitGraph.from_graph(graph)
    blocks = split_blocks(units, max_block_ops=40)
    return [(len(b), width(Dag.of(units.restrict(b).predecessors))) for b in blocks]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.ci if name == FAST else pytest.mark.slow)
        for name in NETWORKS
        if name not in ("inception_v3", "nasnet_large")
    ],
)
def test_both_formats_give_the_same_units(name: str, tmp_path: Path) -> None:
    assert_same_units(*both(name, tmp_path))


@pytest.mark.slow
def test_inception_v3_has_the_units_and_blocks_of_the_paper(tmp_path: Path) -> None:
    from_program, from_pt2 = both("inception_v3", tmp_path)
    from_onnx = of_onnx(export_onnx("inception_v3", tmp_path / "traced.onnx"))

    assert_same_units(from_program, from_pt2)
    assert len(from_onnx) == 120  # the paper's 119 and the classifier
    assert len(from_pt2) == 121  # and the view that torch.onnx writes behind the mean
    for graph in (from_onnx, from_pt2):
        wide = [block for block in block_widths(graph) if block[1] > 1]
        assert len(wide) == 11
        assert sorted(wide, key=lambda block: block[1])[-2:] == [(11, 6), (11, 6)]


def cell_widths(graph: OpGraph) -> list[int]:
    """Width of each cell, known by the names of its operators in the ONNX file.

    A cell is what follows its two projected inputs; the next cell's projection of an earlier
    output, which can run beside it, belongs to it.
    """
    units = UnitGraph.from_graph(graph)
    cells = defaultdict(list)
    for index, op in enumerate(graph.operators):
        found = re.match(r"/cells\.(\d+)/(previous/)?", op.name)
        if found is not None:
            cells[int(found[1]) - bool(found[2])].append(index)
    del cells[-1]
    return [width(Dag.of(units.restrict(cells[c]).predecessors)) for c in sorted(cells)]


@pytest.mark.slow
def test_nasnet_large_has_cells_of_width_8(tmp_path: Path) -> None:
    assert_same_units(*both("nasnet_large", tmp_path))
    from_onnx = of_onnx(export_onnx("nasnet_large", tmp_path / "traced.onnx"))
    *widths, last = cell_widths(from_onnx)
    assert widths == [8] * 19
    assert last == 7  # there is no next cell
