"""Values of a request are checked before they reach a GPU, where some would end the worker."""

import numpy as np
import pytest

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.program.input_ranges import check_inputs, input_ranges
from braid.engine.runtime.arrays import Arrays

#   ids ──cast──> wide ──gather(words, 10 rows)──> rows ──> y
#   ids ─────────────────gather(more, 7 rows)────────> picked
GRAPH = OpGraph(
    "words",
    {"ids": TensorType("INT32", (1, 4)), "x": TensorType("FP32", (4,))},
    {"y": "rows", "z": "picked"},
    {"words": TensorType("FP32", (10, 3)), "more": TensorType("FP32", (7, 3))},
    (
        Operator("wide", "braid.cast", ("ids",), ("wide",), {"dtype": "INT64"}),
        Operator("rows", "braid.gather", ("words", "wide"), ("rows",), {"wrap": False}),
        Operator("picked", "braid.gather", ("more", "ids"), ("picked",), {"axis": 0}),
    ),
    {
        "wide": TensorType("INT64", (1, 4)),
        "rows": TensorType("FP32", (1, 4, 3)),
        "picked": TensorType("FP32", (1, 4, 3)),
    },
)


def test_an_input_keeps_to_every_extent_that_it_indexes() -> None:
    ranges = [(r.name, r.values.lowest, r.values.highest) for r in input_ranges(GRAPH)]

    assert ranges == [("ids", 0, 9), ("ids", -7, 6)]


@pytest.mark.parametrize(
    ("ids", "words"), [([0, 6, 7, 1], "7; .* -7 to 6"), ([3, -1, 0, 0], "-1; .* 0 to 9")]
)
def test_an_index_out_of_range_is_the_callers_mistake(ids: list[int], words: str) -> None:
    inputs: Arrays = {"ids": np.array([ids], np.int32), "x": np.zeros(4)}

    with pytest.raises(InvalidRequest, match=f"'ids' holds the index {words}"):
        check_inputs(input_ranges(GRAPH), inputs)


def test_indices_in_range_pass() -> None:
    check_inputs(input_ranges(GRAPH), {"ids": np.array([[0, 6, 2, 1]])})
    check_inputs(input_ranges(GRAPH), {"ids": np.empty((1, 0), np.int64)})


def graph(operators: tuple[Operator, ...], **specs: TensorType) -> OpGraph:
    """From the inputs x FP32 [5, 2, 3] and n INT64 [2, 2] to the output of the last operator."""
    inputs = {"x": TensorType("FP32", (5, 2, 3)), "n": TensorType("INT64", (2, 2))}
    return OpGraph("one", inputs, {"y": operators[-1].outputs[0]}, {}, operators, specs)


FLAT = Operator("flat", "braid.reshape", ("n",), ("flat",), {"shape": [4]})


def test_lengths_and_divisors_are_checked_like_indices() -> None:
    steps = {"batch_axis": 1, "time_axis": 0}
    lengths = graph(
        (
            FLAT,
            Operator("reversed", "braid.reverse_sequence", ("x", "flat"), ("y",), steps),
        ),
        flat=TensorType("INT64", (4,)),
        y=TensorType("FP32", (5, 2, 3)),
    )
    rest = graph(
        (Operator("rest", "aten.remainder", ("n", "n"), ("y",)),), y=TensorType("INT64", (2, 2))
    )

    with pytest.raises(InvalidRequest, match="'n' holds the length 6; the model takes 0 to 5"):
        check_inputs(input_ranges(lengths), {"n": np.array([[5, 6], [0, 0]])})
    with pytest.raises(InvalidRequest, match="'n' holds the divisor 0"):
        check_inputs(input_ranges(rest), {"n": np.array([[5, 0], [1, 1]])})
    check_inputs(input_ranges(lengths), {"n": np.array([[5, 0], [1, 1]])})


def test_a_float_that_was_an_integer_may_be_a_divisor_of_zero() -> None:
    drawn = graph(
        (
            Operator("float", "braid.cast", ("n",), ("wide",), {"dtype": "FP32"}),
            Operator("quotient", "aten.div", ("wide", "wide"), ("y",)),
        ),
        wide=TensorType("FP32", (2, 2)),
        y=TensorType("FP32", (2, 2)),
    )

    assert input_ranges(drawn) == ()


def test_columns_of_index_tuples_are_checked_where_they_stand() -> None:
    gather = Operator("picked", "braid.gather_nd", ("x", "n"), ("y",))
    direct = graph((gather,), y=TensorType("FP32", (2, 3)))
    turned = graph(
        (
            Operator("turned", "aten.permute", ("n",), ("flat",), {"dims": [1, 0]}),
            Operator("picked", "braid.gather_nd", ("x", "flat"), ("y",)),
        ),
        flat=TensorType("INT64", (2, 2)),
        y=TensorType("FP32", (2, 3)),
    )

    check_inputs(input_ranges(direct), {"n": np.array([[4, 1], [-5, -2]])})
    with pytest.raises(InvalidRequest, match="the index 4; the model takes -2 to 1"):
        check_inputs(input_ranges(direct), {"n": np.array([[1, 4], [0, 0]])})
    assert input_ranges(turned) == ()
