"""Specialising templates: shapes, host operands, branches, budgets, errors."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Branch, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.passes.specialise import interpret, specialise, static_inputs

X = TensorType("FP32", ("batch", 4))


def template(
    *operators: Operator,
    inputs: dict[str, TensorType] | None = None,
    constants: dict[str, TensorType] | None = None,
    outputs: dict[str, str] | None = None,
) -> OpGraph:
    """A verified template; its last operator makes the output ``y`` unless told otherwise."""
    graph = OpGraph(
        name="template",
        inputs=inputs or {"x": X},
        outputs=outputs or {"y": operators[-1].outputs[0]},
        constants=constants or {},
        operators=operators,
    )
    graph.verify()
    return graph


def operator(kind: str, reads: str, makes: str, **attributes: Any) -> Operator:
    """An operator named after what it makes; ``reads`` and ``makes`` are lists of names."""
    host = attributes.pop("host", {})
    return Operator(makes, kind, tuple(reads.split()), tuple(makes.split()), attributes, host)


#   x ──> shape ──> slice ──> cat([.., -1]) ┄host┄> reshape
#    └───────────────────────────────────────────────┘
SHAPED = template(
    operator("braid.shape", "x", "s"),
    operator("braid.slice", "s", "n", starts=[0], ends=[1]),
    operator("aten.cat", "n minus_one", "target", dim=0),
    operator("braid.reshape", "x", "flat", host={"shape": "target"}),
    constants={"minus_one": TensorType("INT64", (1,))},
)
MINUS_ONE = {"minus_one": torch.tensor([-1])}


def static(graph: OpGraph, weights: dict[str, Tensor] | None = None, **shapes: Any) -> OpGraph:
    specs = {name: TensorType(graph.inputs[name].dtype, shape) for name, shape in shapes.items()}
    return specialise(graph, weights or {}, specs)[0]


def test_shape_arithmetic_becomes_an_attribute() -> None:
    graph = static(SHAPED, MINUS_ONE, x=(3, 4))

    assert [op.kind for op in graph.operators] == ["braid.reshape"]
    assert graph.operators[0].attributes == {"shape": [3, -1]}
    assert graph.spec("flat") == TensorType("FP32", (3, 4))
    assert not graph.constants


def test_shape_arithmetic_that_data_needs_becomes_a_small_constant() -> None:
    graph, constants = specialise(
        template(
            operator("braid.size", "x", "n"),
            operator("braid.cast", "n", "count", dtype="FP32"),
            operator("aten.div", "x count", "y"),
        ),
        {},
        {"x": TensorType("FP32", (2, 4))},
    )

    assert [op.kind for op in graph.operators] == ["aten.div"]
    assert constants["count"].item() == 8.0


def test_a_repeated_constant_lies_in_the_order_of_its_shape() -> None:
    graph = template(
        operator("braid.shape", "x", "s"),
        operator("braid.expand", "row", "rows", host={"shape": "s"}),
        operator("aten.add", "x rows", "y"),
        constants={"row": TensorType("FP32", (4,))},
    )

    _, constants = specialise(graph, {"row": torch.arange(4.0)}, {"x": TensorType("FP32", (3, 4))})

    (rows,) = constants.values()
    assert rows.is_contiguous()
    torch.testing.assert_close(rows, torch.arange(4.0).repeat(3, 1))


def test_operators_that_no_output_needs_are_gone() -> None:
    graph = static(
        template(
            operator("aten.relu", "x", "y"),
            operator("aten.exp", "x", "unused"),
            outputs={"y": "y"},
        ),
        x=(2, 4),
    )

    assert [op.kind for op in graph.operators] == ["aten.relu"]


def test_identities_are_names_not_operators() -> None:
    graph = static(
        template(operator("braid.identity", "x", "a"), operator("braid.identity", "a", "b")),
        x=(2, 4),
    )

    assert not graph.operators
    assert graph.outputs == {"y": "x"}
    assert interpret(graph, {}, {"x": torch.ones(2, 4)})["y"].sum() == 8


def conditional(condition: str) -> tuple[Operator, ...]:
    """rate == 16 ? relu(x) : exp(x), both branches naming their value ``inner``."""
    branches = tuple(
        Branch((Operator(f"{kind} arm", kind, ("x",), ("inner",)),), ("inner",))
        for kind in ("aten.relu", "aten.exp")
    )
    equal = operator("aten.eq", "rate sixteen", "same")
    cond = Operator("if", "braid.cond", (), ("y",), {}, {"condition": condition}, branches)
    return equal, cond


RATED = template(
    *conditional("same"),
    inputs={"x": X, "rate": TensorType("INT64", ())},
    constants={"sixteen": TensorType("INT64", ())},
)
SIXTEEN = {"sixteen": torch.tensor(16)}
RATED_INPUTS = {"x": TensorType("FP32", (2, 4)), "rate": TensorType("INT64", ())}


@pytest.mark.parametrize(("rate", "kind"), [(16, "aten.relu"), (8, "aten.exp")])
def test_a_static_input_chooses_the_branch(rate: int, kind: str) -> None:
    graph, _ = specialise(RATED, SIXTEEN, RATED_INPUTS, {"rate": torch.tensor(rate)})

    assert static_inputs(RATED) == ("rate",)
    assert [op.kind for op in graph.operators] == [kind]


def test_a_static_input_whose_content_is_not_given_is_named() -> None:
    with pytest.raises(InvalidRequest, match="content of input 'rate'"):
        specialise(RATED, SIXTEEN, RATED_INPUTS)


def test_inputs_whose_shape_alone_matters_are_not_static() -> None:
    assert static_inputs(SHAPED) == ()


def test_shapes_that_cannot_run_name_the_operator_and_the_shapes() -> None:
    graph = template(
        operator("aten.linear", "x w", "scores"),
        inputs={"x": TensorType("FP32", ("batch", "width"))},
        constants={"w": TensorType("FP32", (5, 4))},
    )

    with pytest.raises(InvalidRequest, match=r"'scores' \(aten.linear\).*FP32\[2, 7\].*5, 4"):
        static(graph, {"w": torch.zeros(5, 4)}, x=(2, 7))


@pytest.mark.parametrize(
    "spec",
    [
        TensorType("FP32", (2, 5)),
        TensorType("FP32", (2, 4, 1)),
        TensorType("INT64", (2, 4)),
        TensorType("FP32", ("batch", 4)),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_named(spec: TensorType) -> None:
    with pytest.raises(InvalidRequest, match=r"input 'x' is .*, the model takes FP32\[batch, 4\]"):
        specialise(template(operator("aten.relu", "x", "y")), {}, {"x": spec})


def test_one_symbol_has_one_extent() -> None:
    graph = template(operator("aten.add", "x z", "y"), inputs={"x": X, "z": X})

    with pytest.raises(InvalidRequest, match=r"input 'z'.*where \{'batch': 2\}"):
        static(graph, x=(2, 4), z=(3, 4))


def test_missing_and_extra_inputs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"inputs are \['x'\], not \['z'\]"):
        specialise(template(operator("aten.relu", "x", "y")), {}, {"z": X})


def test_large_generated_tensors_are_kept_as_operators() -> None:
    shape = [2000, 2000]
    graph = static(
        template(
            operator("braid.constant_of_shape", "", "ones", shape=shape, value=1.0, dtype="FP32"),
            operator("aten.sum", "ones", "y"),
        ),
        x=(2, 4),
    )

    assert [op.kind for op in graph.operators] == ["braid.constant_of_shape", "aten.sum"]


def test_absurdly_large_tensors_are_refused_before_they_exist() -> None:
    graph = template(operator("braid.expand", "x", "y", shape=[2**38, 2, 4]))

    with pytest.raises(InvalidRequest, match=r"'y' \(braid.expand\) would make a tensor of"):
        static(graph, x=(2, 4))


def test_host_evaluation_has_a_budget() -> None:
    graph = template(
        operator("braid.constant_of_shape", "", "a", shape=[2**25], value=1, dtype="INT64"),
        operator("aten.sum", "a", "n", keepdim=True),
        operator("braid.expand", "x", "y", host={"shape": "n"}),
    )

    with pytest.raises(InvalidRequest, match="cannot be evaluated in advance"):
        static(graph, x=(1, 4))


def test_data_dependent_shapes_are_refused() -> None:
    graph = template(operator("braid.nonzero", "x", "y"))

    with pytest.raises(InvalidRequest, match="depends on the data"):
        static(graph, x=(2, 4))


def test_the_constants_of_the_template_are_shared() -> None:
    graph = template(
        operator("aten.linear", "x w", "y"), constants={"w": TensorType("FP32", (5, 4))}
    )
    weight = torch.zeros(5, 4)

    _, constants = specialise(graph, {"w": weight}, {"x": TensorType("FP32", (2, 4))})

    assert constants["w"] is weight


def test_an_epilogue_runs_after_its_operator() -> None:
    fused = operator("aten.add", "x x", "y", epilogue=[["aten.relu"], ["aten.clamp", "max", 3.0]])
    graph = static(template(fused), x=(1, 4))

    outputs = interpret(graph, {}, {"x": torch.tensor([[-1.0, 1.0, 2.0, 9.0]])})

    assert outputs["y"].tolist() == [[0.0, 2.0, 3.0, 3.0]]


def calls_to_specialise(operators: int) -> int:
    """How many function calls a chain of ``operators`` takes."""
    values = ["x", *(f"v{i}" for i in range(operators))]
    chain = template(*(operator("aten.relu", a, b) for a, b in pairwise(values)))
    static(chain, x=(2, 4))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        static(chain, x=(3, 4))
    finally:
        sys.setprofile(None)
    return calls


def test_effort_grows_with_the_number_of_operators_and_no_faster() -> None:
    assert calls_to_specialise(400) < 4.4 * calls_to_specialise(100)
