"""Shapes by arithmetic are the shapes that torch makes."""

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


def _agrees(operator: Operator, *shapes: Shape | None, dtype: torch.dtype = torch.float32) -> bool:
    """Compare a rule with torch; returns whether there was an answer, which torch may refuse."""
    answer = shape_of(operator, [_on_meta(shape, dtype) for shape in shapes])
    if answer is not None:
        data = [None if shape is None else torch.ones(shape, dtype=dtype) for shape in shapes]
        (result,) = call(operator, data)
        assert answer == tuple(result.shape)
        assert result.dtype == dtype
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


def _random_shape(rng: random.Random, most: int = 4) -> Shape:
    return tuple(rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(0, most)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_broadcasting_is_as_torch_says_or_left_to_it(kind: str, dtype: torch.dtype) -> None:
    rng = random.Random(kind)
    attributes: dict[str, Literal] = {"truncate": True} if kind == "div" else {}
    operator = _operator(f"aten.{kind}", 2, **attributes)

    answered = [
        _agrees(operator, _random_shape(rng), _random_shape(rng), dtype=dtype) for _ in range(40)
    ]

    assert any(answered)


def _random_pool(rng: random.Random) -> tuple[Operator, Shape]:
    axes = rng.choice((1, 2, 2, 3))

    def numbers(least: int, most: int, count: int = axes) -> list[Literal]:
        return [rng.randint(least, most) for _ in range(count)]

    even = numbers(0, 1)
    pads = rng.choice((even + even, numbers(0, 3, 2 * axes), "same_upper", "same_lower"))
    window: dict[str, Literal] = {
        "kernel": numbers(1, 4),
        "stride": numbers(1, 3),
        "pads": pads,
        "dilation": numbers(1, 2),
        "ceil_mode": rng.random() < 0.5,
    }
    kind = rng.choice(("braid.max_pool", "braid.avg_pool"))
    more: dict[str, Literal] = {"count_padding": True} if kind == "braid.avg_pool" else {}
    shape = 1, 2, *(rng.randint(1, 9) for _ in range(axes))
    return _operator(kind, 1, **window, **more), shape


def test_pools_of_random_windows_are_as_torch_says_or_left_to_it() -> None:
    rng = random.Random(5)

    answered = [_agrees(*_random_pool(rng)) for _ in range(300)]

    assert sum(answered) > 200


@pytest.mark.parametrize("kind", ["mean", "sum", "amax", "amin"])
def test_reductions_are_as_torch_says_or_left_to_it(kind: str) -> None:
    rng = random.Random(kind)

    def reduced() -> bool:
        shape = _random_shape(rng)
        dims: list[Literal] = [rng.randint(-4, 3) for _ in range(rng.randint(0, 2))]
        operator = _operator(f"aten.{kind}", 1, dims=dims, keepdim=rng.random() < 0.5)
        return _agrees(operator, shape, dtype=rng.choice((torch.float32, torch.bfloat16)))

    assert sum(reduced() for _ in range(100)) > 20


def test_products_concatenations_and_softmax_are_as_torch_says_or_left_to_it() -> None:
    rng = random.Random(7)

    def answered(kind: str, count: int, **attributes: Literal) -> bool:
        shapes = [_random_shape(rng) for _ in range(count)]
        return _agrees(_operator(kind, count, **attributes), *shapes)

    assert sum(answered("aten.matmul", 2) for _ in range(200)) > 0
    assert sum(answered("aten.cat", 3, dim=rng.randint(-3, 3)) for _ in range(400)) > 0
    assert sum(answered("aten.softmax", 1, dim=rng.randint(-4, 4)) for _ in range(40)) > 0
    assert sum(answered("braid.rms_norm", 2, axis=-1, eps=1e-5) for _ in range(200)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32])
def test_what_is_picked_by_integers_is_as_torch_says(dtype: torch.dtype) -> None:
    operator = _operator("braid.gather", 2, axis=-2)
    x, indices = torch.ones(4, 3, 2, dtype=dtype), torch.ones(5, 1, dtype=torch.int64)

    (result,) = call(operator, [x, indices])

    assert shape_of(operator, [x.to("meta"), indices.to("meta")]) == tuple(result.shape)


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
        (_operator("aten.matmul", 2), [(2, 3), (4, 5)]),
        (_operator("aten.cat", 2, dim=0), [(2, 3), (2, 4)]),
    ],
    ids=["broadcast", "channels", "window", "product", "matmul", "cat"],
)
def test_what_does_not_fit_is_refused_in_torchs_words(
    operator: Operator, shapes: list[Shape]
) -> None:
    with pytest.raises(InvalidRequest, match="cannot run on"):
        attempt(operator, [_on_meta(shape) for shape in shapes])


def test_results_in_memory_are_computed_and_not_told() -> None:
    (result,) = attempt(_operator("aten.relu", 1), [torch.tensor([-1.0, 2.0])])

    assert result.tolist() == [0.0, 2.0]
