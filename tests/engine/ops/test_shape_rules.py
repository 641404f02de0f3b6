"""Shapes by arithmetic are the shapes that torch makes."""

from __future__ import annotations

import random

import pytest
import torch

import braid.engine.ops  # noqa: F401  (fills the table of kinds)
from braid.core.errors import InvalidRequest
from braid.core.graph import Literal, Operator
from braid.engine.ops.evaluation import attempt
from braid.engine.ops.kinds import OPS, call
from braid.engine.ops.shape_rules import shape_of

Shape = tuple[int, ...]


def _operator(kind: str, count: int, **attributes: Literal) -> Operator:
    return Operator("unit", kind, tuple(f"v{at}" for at in range(count)), ("y",), attributes)


def _on_meta(shape: Shape | None, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
    return None if shape is None else torch.empty(shape, dtype=dtype, device="meta")


def _agrees(operator: Operator, *shapes: Shape | None) -> bool:
    """Compare a rule with torch; returns whether there was an answer, which torch may refuse."""
    answer = shape_of(operator, [_on_meta(shape) for shape in shapes])
    if answer is not None:
        data = [None if shape is None else torch.zeros(shape) for shape in shapes]
        (result,) = call(operator, data)
        assert answer == tuple(result.shape)
        assert result.dtype == torch.float32
    return answer is not None


def _random_convolution(rng: random.Random) -> tuple[Operator, list[Shape | None]]:
    axes, groups = rng.choice((1, 2, 3)), rng.choice((1, 1, 2, 3))
    inner, outer = rng.randint(1, 2), groups * rng.randint(1, 2)
    channels = groups * inner + (rng.random() < 0.1)
    data = rng.randint(1, 2), channels, *(rng.randint(1, 9) for _ in range(axes))
    weight = outer, inner, *(rng.randint(1, 4) for _ in range(axes))
    bias = None if rng.random() < 0.3 else (outer,)

    def numbers(least: int, most: int) -> list[Literal]:
        return [rng.randint(least, most) for _ in range(axes)] if rng.random() < 0.7 else []

    window: dict[str, Literal] = {
        "stride": numbers(1, 3),
        "padding": numbers(0, 2),
        "dilation": numbers(1, 2),
        "groups": groups,
        "epilogue": [["aten.relu"]] if rng.random() < 0.5 else [],
    }
    return _operator("aten.convolution", 3, **window), [data, weight, bias]


def test_convolutions_of_random_windows_are_as_torch_says_or_left_to_it() -> None:
    rng = random.Random(3)
    trials = [_random_convolution(rng) for _ in range(300)]

    answered = [_agrees(operator, *shapes) for operator, shapes in trials]

    assert sum(answered) > 150


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_broadcasting_is_as_torch_says_or_left_to_it(kind: str) -> None:
    rng = random.Random(kind)
    shapes = [tuple(rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(0, 4))) for _ in range(80)]

    answered = [
        _agrees(_operator(f"aten.{kind}", 2), left, right)
        for left, right in zip(shapes[::2], shapes[1::2], strict=True)
    ]

    assert any(answered)


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (_operator("aten.linear", 3), [(2, 5, 4), (7, 4), (7,)]),
        (_operator("aten.linear", 2), [(4,), (7, 4)]),
        (_operator("braid.linear_add", 4), [(2, 4), (7, 4), None, (2, 7)]),
        (_operator("aten.layer_norm", 3, axis=-1, eps=1e-5), [(2, 5, 4), (4,), (4,)]),
        (_operator("aten.layer_norm", 2, axis=1, eps=1e-5), [(2, 5, 4), None]),
        (_operator("braid.global_avg_pool", 1), [(2, 3, 5, 4)]),
        (_operator("braid.global_max_pool", 1), [(2, 3, 5)]),
        (
            _operator("braid.convolution_add", 4, epilogue=[["aten.relu"]]),
            [(1, 2, 5, 5), (3, 2, 3, 3), None, (1, 3, 3, 3)],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Operator) else "",
)
def test_other_kinds_are_as_torch_says(operator: Operator, shapes: list[Shape | None]) -> None:
    assert _agrees(operator, *shapes)


_NUMBERS: dict[str, dict[str, Literal]] = {
    "aten.clamp": {"min": 0.0, "max": 1.0},
    "braid.hardsigmoid": {"alpha": 0.2, "beta": 0.5},
    "braid.selu": {"alpha": 1.6, "gamma": 1.0},
    "braid.thresholded_relu": {"alpha": 1.0},
    "braid.shrink": {"lambd": 0.5, "bias": 0.1},
    "braid.affine": {"scale": 2.0, "shift": 1.0},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", sorted(kind for kind, entry in OPS.items() if entry.pointwise))
def test_pointwise_kinds_keep_shape_and_type_of_floats(kind: str, dtype: torch.dtype) -> None:
    operator = _operator(kind, 1, **_NUMBERS.get(kind, {}))

    (result,) = call(operator, [torch.ones(2, 3, dtype=dtype)])

    assert (tuple(result.shape), result.dtype) == ((2, 3), dtype)
    assert shape_of(operator, [_on_meta((2, 3), dtype)]) == (2, 3)


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (_operator("aten.add", 2), [(2, 3), (4,)]),
        (_operator("aten.convolution", 2), [(1, 3, 5, 5), (4, 2, 3, 3)]),
        (_operator("aten.convolution", 2), [(1, 2, 2, 2), (4, 2, 3, 3)]),
        (_operator("aten.linear", 2), [(2, 3), (4, 5)]),
    ],
    ids=["broadcast", "channels", "window", "product"],
)
def test_what_does_not_fit_is_refused_in_torchs_words(
    operator: Operator, shapes: list[Shape]
) -> None:
    with pytest.raises(InvalidRequest, match="cannot run on"):
        attempt(operator, [_on_meta(shape) for shape in shapes])


def test_results_in_memory_are_computed_and_not_told() -> None:
    (result,) = attempt(_operator("aten.relu", 1), [torch.tensor([-1.0, 2.0])])

    assert result.tolist() == [0.0, 2.0]
