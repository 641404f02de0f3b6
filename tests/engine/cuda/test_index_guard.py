"""Requests' indices are checked before they reach a GPU, where they would end the worker."""

from __future__ import annotations

import pytest
import torch

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.cuda.kernels.index_guard import check_indices, index_ranges

#   ids ──cast──> wide ──embedding(words, 10 rows)──> rows ──> y
#   ids ─────────────────gather(more, 7 rows)────────> picked
GRAPH = OpGraph(
    "words",
    {"ids": TensorType("INT32", (1, 4)), "x": TensorType("FP32", (4,))},
    {"y": "rows", "z": "picked"},
    {"words": TensorType("FP32", (10, 3)), "more": TensorType("FP32", (7, 3))},
    (
        Operator("wide", "braid.cast", ("ids",), ("wide",), {"dtype": "INT64"}),
        Operator("rows", "aten.embedding", ("words", "wide"), ("rows",)),
        Operator("picked", "braid.gather", ("more", "ids"), ("picked",), {"axis": 0}),
    ),
    {
        "wide": TensorType("INT64", (1, 4)),
        "rows": TensorType("FP32", (1, 4, 3)),
        "picked": TensorType("FP32", (1, 4, 3)),
    },
)


def test_an_input_keeps_to_every_extent_that_it_indexes() -> None:
    (ids,) = index_ranges(GRAPH)

    assert (ids.name, ids.lowest, ids.highest) == ("ids", 0, 6)


@pytest.mark.parametrize(("ids", "wrong"), [([0, 6, 7, 1], 7), ([3, -1, 0, 0], -1)])
def test_an_index_out_of_range_is_the_callers_mistake(ids: list[int], wrong: int) -> None:
    inputs = {"ids": torch.tensor([ids], dtype=torch.int32), "x": torch.zeros(4)}

    with pytest.raises(InvalidRequest, match=f"'ids' holds the index {wrong}; .* 0 to 6"):
        check_indices(index_ranges(GRAPH), inputs)


def test_indices_in_range_pass() -> None:
    check_indices(index_ranges(GRAPH), {"ids": torch.tensor([[0, 6, 2, 1]])})
    check_indices(index_ranges(GRAPH), {"ids": torch.empty(1, 0, dtype=torch.int64)})
