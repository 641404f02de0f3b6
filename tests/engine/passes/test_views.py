"""Views and expansions that are joined with others, or are left to what reads them."""

import pytest
import torch

from braid.core.tensor import Dim
from braid.engine.passes.clean import drop_no_ops
from braid.engine.passes.folding import (
    drop_expansions,
    fold_gathers,
    fold_pooled_views,
    fold_view_chains,
)
from tests.engine.passes.drawing import Drawing, assert_same_numbers, kinds, left

IMAGES: list[Dim] = ["batch", 4, 6, 6]


TURNED = "permute(permute({}, dims=[0, 2, 3, 1]), dims={})"


@pytest.mark.parametrize(
    ("shape", "text", "kinds"),
    [
        # a global average and its flatten are one mean, unless others read it or it gets other axes
        *(
            (IMAGES, f"{view[0]}(global_avg_pool(x){view[1]})", ["mean"])
            for view in (("flatten", ", axis=1"), ("flatten", ""), ("reshape", ", shape=[0, -1]"))
        ),
        (IMAGES, "p = global_avg_pool(x); flatten(p), p", ["global_avg_pool", "flatten"]),
        (IMAGES, "reshape(global_avg_pool(x), shape=[0, 2, 2])", ["global_avg_pool", "reshape"]),
        # two permutations are one, and opposite ones none
        (
            ["batch", 3, 4, 5],
            f"{TURNED.format('x', [0, 3, 2, 1])}, neg({TURNED.format('relu(x)', [0, 3, 1, 2])})",
            ["permute", "relu", "neg"],
        ),
        # a reshape of a view is one reshape, unless it copies an extent
        *(
            (["batch", 4, 6], f"reshape({view}, shape=[-1, 3, 4])", ["reshape"])
            for view in (
                "reshape(x, shape=[-1, 8])",
                "flatten(x, axis=1)",
                "unsqueeze(x, axes=[1])",
            )
        ),
        (
            ["batch", 4, 6],
            "reshape(reshape(x, shape=[-1, 6]), shape=[0, 2, 3])",
            ["reshape", "reshape"],
        ),
    ],
)
def test_views_are_joined_with_what_comes_before(
    shape: list[Dim], text: str, kinds: list[str]
) -> None:
    assert left([fold_pooled_views, fold_view_chains, drop_no_ops], text, x=shape) == kinds


@pytest.mark.parametrize(
    ("places", "folded"),
    [
        ([[[0, 0], [0, 1], [0, 2]], [[1, 0], [-1, 1], [1, -1]]], ["reshape"]),
        ([[[0, 0], [0, 1], [0, 2]], [[1, 0], [1, 1], [1, 1]]], ["gather_nd"]),
        ([[[0, 0], [0, 1], [0, 2]]], ["gather_nd"]),
        ([[0], [1]], ["reshape"]),
        ([[1], [0]], ["gather_nd"]),
    ],
    ids=["in order", "one twice", "not all", "rows in order", "rows in another order"],
)
def test_a_gather_of_everything_in_its_order_is_a_reshape(
    places: list[object], folded: list[str]
) -> None:
    net = Drawing(x=[2, 3])
    net.weights["places"] = torch.tensor(places)
    drawn = net.static(net.op("braid.gather_nd", "x", "places"))

    graph = fold_gathers(*drawn)

    assert kinds(graph) == folded
    assert_same_numbers(drawn, (graph, drawn[1]))


#   x ──┬────────────────────────────────> div ──> y      as torch's normalize is written
#       └──> l2_norm ──> expand [2, 3, 8] ──^
def test_sums_repeat_their_operands_themselves() -> None:
    draw = Drawing(x=(2, 3, 8))
    norm = draw.op("braid.l2_norm", "x", dims=[-1], keepdim=True)
    wide = draw.op("braid.expand", norm, shape=[2, 3, 8])
    graph, constants = draw.static(draw.op("aten.div", "x", wide))

    assert [op.kind for op in drop_expansions(graph, constants).operators] == [
        "braid.l2_norm",
        "aten.div",
    ]


def test_an_expansion_that_makes_the_shape_stays() -> None:
    draw = Drawing(x=(3, 1))
    wide = draw.op("braid.expand", "x", shape=[3, 8])
    graph, constants = draw.static(draw.op("aten.add", wide, wide))

    assert drop_expansions(graph, constants) == graph
