"""Group norms as exporters write them become one unit with the same numbers."""

import pytest

from braid.core.graph import OpGraph
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.group_norms import fuse_group_norms
from braid.engine.passes.specialise import specialise
from tests.engine.passes.drawing import Drawing, epilogue, fused, kinds


def drawn(*, weights_of_groups: bool = False, flat: bool = False) -> tuple[OpGraph, Weights]:
    """Reshape, instance norm, reshape, product, sum, relu."""
    draw = Drawing(x=(2, 8, 3, 5))
    apart = draw.op("braid.reshape", "x", shape=[0, 4, -1])
    own = (
        (draw.constant(4), draw.constant(4))
        if weights_of_groups
        else (draw.constant(4, value=1.0), draw.constant(4, value=0.0))
    )
    y = draw.op("braid.instance_norm", apart, *own, eps=1e-3)
    y = draw.op("braid.reshape", y, shape=[2, 8, 3, 5])
    shape = (5,) if flat else (8, 1, 1)
    y = draw.op("aten.add", draw.op("aten.mul", y, draw.constant(*shape)), draw.constant(*shape))
    template, weights = run_passes(*draw.graph(draw.op("aten.relu", y)))
    return specialise(template, weights, template.inputs)


def test_all_of_it_becomes_one_unit_with_its_activation() -> None:
    (unit,) = fused(fuse_group_norms, *drawn()).operators

    assert (unit.kind, epilogue(unit)) == ("braid.group_norm", ["relu"])


@pytest.mark.parametrize("how", [{"weights_of_groups": True}, {"flat": True}], ids=str)
def test_other_products_and_sums_stay(how: dict[str, bool]) -> None:
    assert kinds(fused(fuse_group_norms, *drawn(**how))) == ["group_norm", "mul", "add"]


def test_a_norm_of_something_else_than_groups_of_channels_stays() -> None:
    draw = Drawing(x=(2, 8, 3, 5))
    apart = draw.op("braid.reshape", "x", shape=[4, 4, -1])
    y = draw.op("braid.instance_norm", apart, draw.constant(4), draw.constant(4), eps=1e-3)
    graph, constants = draw.static(draw.op("braid.reshape", y, shape=[2, 8, 3, 5]))

    assert fuse_group_norms(graph, constants) == graph
