from __future__ import annotations

import pytest
import torch

from braid.core.graph import Literal
from braid.engine.passes.clean import drop_no_ops
from braid.engine.passes.folding import (
    drop_expansions,
    fold_gathers,
    fold_pooled_views,
    fold_view_chains,
)
from tests.engine.passes.drawing import Drawing, assert_same_numbers, kinds, rewritten


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("braid.flatten", {"axis": 1}), ("braid.flatten", {}), ("braid.reshape", {"shape": [0, -1]})],
)
def test_a_global_average_and_its_flatten_are_one_mean(
    kind: str, attributes: dict[str, Literal]
) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.op(kind, net.op("braid.global_avg_pool", "x"), **attributes)

    assert kinds(rewritten(net, fold_pooled_views, y)) == ["mean"]


def test_a_global_average_with_another_reader_keeps_its_axes() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    pooled = net.op("braid.global_avg_pool", "x")
    graph = rewritten(net, fold_pooled_views, net.op("braid.flatten", pooled), pooled)

    assert kinds(graph) == ["global_avg_pool", "flatten"]


def test_a_reshape_that_does_more_than_drop_axes_stays() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    pooled = net.op("braid.global_avg_pool", "x")
    y = net.op("braid.reshape", pooled, shape=[0, 2, 2])

    assert kinds(rewritten(net, fold_pooled_views, y)) == ["global_avg_pool", "reshape"]


def test_two_permutations_are_one_and_opposite_ones_none() -> None:
    net = Drawing(x=["batch", 3, 4, 5])
    once = net.op("aten.permute", "x", dims=[0, 2, 3, 1])
    twice = net.op("aten.permute", once, dims=[0, 3, 2, 1])
    there = net.op("aten.permute", net.op("aten.relu", "x"), dims=[0, 2, 3, 1])
    back = net.op("aten.permute", there, dims=[0, 3, 1, 2])

    graph = rewritten(net, [fold_view_chains, drop_no_ops], twice, net.op("aten.neg", back))

    assert kinds(graph) == ["permute", "relu", "neg"]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("braid.reshape", {"shape": [-1, 8]}),
        ("braid.flatten", {"axis": 1}),
        ("braid.unsqueeze", {"axes": [1]}),
    ],
)
def test_a_reshape_of_a_view_is_one_reshape(kind: str, attributes: dict[str, Literal]) -> None:
    net = Drawing(x=["batch", 4, 6])
    y = net.op("braid.reshape", net.op(kind, "x", **attributes), shape=[-1, 3, 4])

    assert kinds(rewritten(net, fold_view_chains, y)) == ["reshape"]


def test_a_reshape_that_copies_an_extent_keeps_the_view_before_it() -> None:
    net = Drawing(x=["batch", 4, 6])
    flat = net.op("braid.reshape", "x", shape=[-1, 6])
    y = net.op("braid.reshape", flat, shape=[0, 2, 3])

    assert kinds(rewritten(net, fold_view_chains, y)) == ["reshape", "reshape"]


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
