"""Activations that exporters write in several operators become one, with the same numbers."""

import math

import pytest

from braid.engine.passes.patterns import recognise_activations
from braid.engine.passes.run import PASSES
from tests.engine.passes.drawing import left

CLIPPED = "clamp(add(x, 3.0), min=0.0, max=6.0)"
ERF = f"add(erf(div(x, {math.sqrt(2)})), 1.0)"
CUBED = f"mul(add(x, mul({{}}, 0.044715)), {math.sqrt(2 / math.pi)})"
SLOPE = f"mul(mul(x, {math.sqrt(2 / math.pi)}), add(1.0, mul(mul(0.044715, x), x)))"
RECOGNISED = {
    "silu": ["mul(x, sigmoid(x))", "mul(sigmoid(x), x)"],
    "hardswish": [
        f"mul(x, div({CLIPPED}, 6.0))",
        f"div(mul(x, {CLIPPED}), 6.0)",
        f"mul(mul(x, {CLIPPED}), const(1, value={1 / 6}))",
        f"mul(hardsigmoid(x, alpha={1 / 6}, beta=0.5), x)",
    ],
    "gelu": [
        f"mul(mul(x, 0.5), {ERF})",
        f"mul(mul(x, {ERF}), 0.5)",
        *(
            f"mul(mul(x, 0.5), add(tanh({inner}), 1.0))"
            for inner in (
                CUBED.format("pow(x, value=3.0)"),
                CUBED.format("mul(mul(x, x), x)"),
                SLOPE,
            )
        ),
    ],
}


@pytest.mark.parametrize(
    ("text", "kind"), [(text, kind) for kind, texts in RECOGNISED.items() for text in texts]
)
def test_every_way_to_write_an_activation_is_recognised(text: str, kind: str) -> None:
    assert left(recognise_activations, text, x=["batch", 4]) == [kind]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("mul(x, sigmoid(z))", ["sigmoid", "mul"]),
        ("gate = sigmoid(x); mul(x, gate), gate", ["sigmoid", "mul"]),
        ("mul(x, hardsigmoid(x, alpha=0.2, beta=0.5))", ["hardsigmoid", "mul"]),
    ],
)
def test_gates_of_other_values_slopes_and_readers_stay(text: str, kinds: list[str]) -> None:
    assert left(recognise_activations, text, x=["batch", 4], z=["batch", 4]) == kinds


def test_a_convolution_and_its_recognised_activation_are_one_unit() -> None:
    text = "c = norm(conv(x, 4, 8), 8); mul(c, sigmoid(c))"

    assert left(PASSES, text, 1e-5, x=["batch", 4, 6, 6]) == ["convolution"]
