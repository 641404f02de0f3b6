"""Group norms as exporters write them become one unit with the same numbers."""

import pytest

from braid.core.graph import OpGraph
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.group_norms import fuse_group_norms
from braid.engine.passes.specialise import specialise
from tests.engine.passes.drawing import drawn, epilogue, fused, kinds

PLAIN = "const(4, value=1.0), const(4, value=0.0)"


def normed(
    own: str = PLAIN, shape: str = "8, 1, 1", apart: str = "0, 4, -1"
) -> tuple[OpGraph, Weights]:
    """Reshape, instance norm with weights of its own, reshape, product, sum, relu."""
    groups = f"instance_norm(reshape(x, shape=[{apart}]), {own}, eps=1e-3)"
    whole = f"reshape({groups}, shape=[2, 8, 3, 5])"
    text = f"relu(add(mul({whole}, const({shape})), const({shape})))"
    drawing, outputs = drawn(text, x=(2, 8, 3, 5))
    template, weights = run_passes(*drawing.graph(*outputs))
    return specialise(template, weights, template.inputs)


def test_all_of_it_becomes_one_unit_with_its_activation() -> None:
    (unit,) = fused(fuse_group_norms, *normed()).operators

    assert (unit.kind, epilogue(unit)) == ("braid.group_norm", ["relu"])


@pytest.mark.parametrize("how", [{"own": "const(4), const(4)"}, {"shape": "5"}], ids=str)
def test_other_products_and_sums_stay(how: dict[str, str]) -> None:
    assert kinds(fused(fuse_group_norms, *normed(**how))) == ["group_norm", "mul", "add"]


def test_a_norm_of_something_else_than_groups_of_channels_stays() -> None:
    graph, constants = normed(apart="4, 4, -1")

    assert fuse_group_norms(graph, constants) == graph
