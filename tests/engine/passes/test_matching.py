"""What patterns fit, and where a rule puts what it builds."""

import pytest

from braid.core.graph import Branch, Literal, Operator, OpGraph
from braid.engine.passes.clean import drop_dead
from braid.engine.passes.matching import (
    Captures,
    Op,
    Upstream,
    becomes,
    either,
    number,
    rewrite,
    rule,
    value,
)
from tests.engine.passes.drawing import Drawing, drawn, kinds

X = value("x")
SILU = rule(Op("aten.mul", X, Op("aten.sigmoid", X)), becomes("aten.silu", "x"))


LESS = rule(Op("aten.sub", X, Op("aten.sigmoid", X)), becomes("aten.silu", "x"))
AFTER = rule(Op("aten.neg", Op("aten.silu", X)), becomes("aten.abs", "x"))


def rewritten(drawing: Drawing, output: str, *rules: object) -> OpGraph:
    return drop_dead(*rewrite(*drawing.graph(output), *rules))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "rules", "left"),
    [
        # operands of a product are tried in both orders, those of a difference are not
        ("mul(x, sigmoid(x))", [SILU], ["silu"]),
        ("mul(sigmoid(x), x)", [SILU], ["silu"]),
        ("sub(sigmoid(x), x)", [LESS], ["sigmoid", "sub"]),
        # a name stands for one value
        ("mul(z, sigmoid(x))", [SILU], ["sigmoid", "mul"]),
        # what another operator reads is not inside a pattern
        ("gate = sigmoid(x); add(mul(x, gate), gate)", [SILU], ["sigmoid", "mul", "add"]),
        # a rewritten operator is seen by the patterns after it
        ("neg(mul(x, sigmoid(x)))", [SILU, AFTER], ["abs"]),
    ],
)
def test_what_a_pattern_fits(text: str, rules: list[object], left: list[str]) -> None:
    drawing, (y,) = drawn(text, x=("n", 4), z=("n", 4))

    assert kinds(rewritten(drawing, y, *rules)) == left


def test_a_pattern_is_found_inside_a_branch() -> None:
    drawing = Drawing(x=("n", 4), c=())
    gate = Operator("gate", "aten.sigmoid", ("x",), ("gate",))
    product = Operator("product", "aten.mul", ("gate", "x"), ("product",))
    other = Branch((Operator("relu", "aten.relu", ("x",), ("relu",)),), ("relu",))
    y = drawing.cond("c", Branch((gate, product), ("product",)), other)

    (cond,) = rewritten(drawing, y, SILU).operators

    assert [op.kind for op in cond.branches[0].operators] == ["aten.silu"]


@pytest.mark.parametrize(
    ("attributes", "fits"),
    [({"min": 0, "max": 6}, True), ({"min": 0, "max": 7}, True), ({"min": 1, "max": 6}, False),
     ({"min": 0, "max": 6, "epilogue": [["aten.relu"]]}, False), ({"max": 6}, False)],
)  # fmt: skip
def test_attributes_are_literals_or_tests(attributes: dict[str, Literal], fits: bool) -> None:
    drawing = Drawing(x=("n", 4))
    y = drawing.op("aten.clamp", "x", **attributes)
    clamp = Op("aten.clamp", X, min=0, max=lambda most: most > 5)

    graph = rewritten(drawing, y, rule(clamp, becomes("aten.relu", "x")))

    assert kinds(graph) == ["relu" if fits else "clamp"]


@pytest.mark.parametrize(("kind", "left"), [("aten.sub", "neg"), ("aten.mul", "neg")])
def test_the_first_rule_and_alternative_that_fit_count(kind: str, left: str) -> None:
    drawing = Drawing(x=("n", 4))
    y = drawing.op(kind, "x", drawing.constant(1, value=2.0))
    either_of = either(Op("aten.mul", X, number(2)), Op("aten.sub", X, number(lambda n: n > 1)))
    rules = (
        rule(Op(kind, X, number(3)), becomes("aten.abs", "x")),
        rule(either_of, becomes("aten.neg", "x")),
        rule(Op(kind, X), becomes("aten.relu", "x")),
    )

    assert kinds(rewritten(drawing, y, *rules)) == [left]


#   x ──> relu ──> neg ──> y        the merged operator has the name and place of relu
#   x ──> abs ──────────────> (read by the sum)
def test_a_replacement_with_an_earlier_name_takes_its_place() -> None:
    drawing = Drawing(x=("n", 4))
    first = drawing.op("aten.relu", "x")
    beside = drawing.op("aten.abs", "x")
    y = drawing.op("aten.add", drawing.op("aten.neg", first), beside)

    def merged(op: Operator, captures: Captures, upstream: Upstream) -> Operator:
        root = upstream.makers[captures["root"]]
        return Operator(root.name, "aten.erf", root.inputs, op.outputs)

    graph = rewritten(drawing, y, rule(Op("aten.neg", Op("aten.relu", X, name="root")), merged))

    assert [op.name for op in graph.operators] == ["relu0", "abs1", "add3"]
    assert kinds(graph) == ["erf", "abs", "add"]
