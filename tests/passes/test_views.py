from __future__ import annotations

import pytest

from core.graph import Literal
from engine.passes.views import fold_pooled_views
from tests.passes.drawing import Drawing, assert_same_numbers, kinds


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("braid.flatten", {"axis": 1}), ("braid.flatten", {}), ("braid.reshape", {"shape": [0, -1]})],
)
def test_a_global_average_and_its_flatten_are_one_mean(
    kind: str, attributes: dict[str, Literal]
) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    drawn = net.graph(net.op(kind, net.op("braid.global_avg_pool", "x"), **attributes))

    folded = fold_pooled_views(*drawn)

    assert kinds(folded[0]) == ["mean"]
    assert_same_numbers(drawn, folded)


def test_a_global_average_with_another_reader_keeps_its_axes() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    pooled = net.op("braid.global_avg_pool", "x")
    graph, _ = fold_pooled_views(*net.graph(net.op("braid.flatten", pooled), pooled))

    assert kinds(graph) == ["global_avg_pool", "flatten"]


def test_a_reshape_that_does_more_than_drop_axes_stays() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    pooled = net.op("braid.global_avg_pool", "x")
    graph, _ = fold_pooled_views(*net.graph(net.op("braid.reshape", pooled, shape=[0, 2, 2])))

    assert kinds(graph) == ["global_avg_pool", "reshape"]
