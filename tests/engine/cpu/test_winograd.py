"""Winograd's convolutions against the definition in FP64."""

import math
import random

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from braid.core.graph import Literal
from braid.engine.cpu.kernels.candidates import CPU_KERNELS
from braid.engine.cpu.kernels.winograd import VARIANT, cut
from braid.engine.cpu.native.find import find_native
from braid.engine.ops.dtypes import arrays_of
from braid.engine.program.kernel import MergedUnit, PackedWeights
from tests.engine.cpu.executors import on_tensors
from tests.engine.cpu.executors import vector_width as vector_width
from tests.engine.cpu.test_kernels import all_kernels, convolution_attributes, unit_graph

NATIVE = find_native()

pytestmark = [
    pytest.mark.skipif(
        NATIVE is None or not NATIVE.braid_has_winograd(),
        reason="the part in C was not built, or this CPU has no AVX2",
    ),
    pytest.mark.usefixtures("vector_width"),
]

RELU: list[Literal] = [["aten.relu"]]


def images(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def run(inputs: dict[str, Tensor | None], threads: int, **attributes: Literal) -> Tensor:
    kind = "braid.convolution_add" if "r" in inputs else "aten.convolution"
    usual = convolution_attributes(**attributes)
    graph, weights = unit_graph(kind, inputs, ["w", "b"], usual)
    kernel = all_kernels(graph, weights)[VARIANT]
    result = on_tensors(kernel, threads)(*inputs.values())
    return result if isinstance(result, Tensor) else result[0]


def exact(inputs: dict[str, Tensor | None], padding: tuple[int, int], relu: bool) -> Tensor:
    x, w, b, r = (*(each if each is None else each.double() for each in inputs.values()), None)[:4]
    assert x is not None
    assert w is not None
    y = conv2d(x, w, b, padding=padding)
    y = y if r is None else y + r
    return y.relu() if relu else y


def assert_close(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape
    assert float((got - wanted).abs().max()) <= 2e-5 * float(wanted.abs().max())


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("source", "out", "padding"),
    [
        ((1, 16, 56, 56), 32, (1, 1)),
        ((1, 8, 4, 4), 16, (1, 1)),  # one tile
        ((2, 24, 13, 9), 48, (1, 1)),  # half a vector of channels, half a panel, parts of tiles
        ((3, 40, 5, 7), 80, (0, 0)),
        ((1, 64, 7, 7), 128, (1, 1)),  # threads share outputs
        ((1, 16, 3, 30), 16, (0, 2)),
        ((1, 16, 1, 1), 16, (1, 1)),  # all but one pixel are padding
        ((5, 16, 6, 6), 208, (2, 0)),
    ],
)
def test_images_of_every_size(
    source: tuple[int, ...], out: int, padding: tuple[int, int], threads: int
) -> None:
    inputs: dict[str, Tensor | None] = {
        "x": images(*source),
        "w": torch.randn(out, source[1], 3, 3),
        "b": torch.randn(out),
    }

    got = run(inputs, threads, padding=list(padding))

    assert_close(got, exact(inputs, padding, relu=False))


@pytest.mark.parametrize("count", [50, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_images_err_by_no_more_than_their_neighbourhood_allows(count: int) -> None:
    chance = random.Random(1)
    for _ in range(count):
        rows, height, width = (chance.randint(1, most) for most in (3, 20, 20))
        inner, out = 8 * chance.randint(1, 6), 16 * chance.randint(1, 5)
        scale = 10.0 ** chance.randint(-10, 10)
        x = scale * images(rows, inner, height, width) * torch.randn(1, 1, height, 1).exp()
        w, b = torch.randn(out, inner, 3, 3), torch.randn(out)

        got = run({"x": x, "w": w, "b": b}, chance.choice([1, 2, 3]))

        around = max_pool2d(x.abs().double(), 11, stride=1, padding=5)
        size = conv2d(around, w.abs().double(), b.abs().double(), padding=1)
        wanted = conv2d(x.double(), w.double(), b.double(), padding=1)
        assert bool(((got - wanted).abs() <= 2.0**-24 * (9 * inner + 4) * size).all())


@pytest.mark.parametrize("epilogue", [None, RELU], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_residual", [True, False])
def test_what_follows_a_convolution(
    epilogue: list[Literal] | None, has_bias: bool, has_residual: bool
) -> None:
    inputs: dict[str, Tensor | None] = {
        "x": images(2, 16, 10, 11),
        "w": torch.randn(32, 16, 3, 3),
        "b": torch.randn(32) if has_bias else None,
    }
    if has_residual:
        inputs["r"] = images(2, 32, 10, 11)

    got = run(inputs, 2, **({} if epilogue is None else {"epilogue": epilogue}))

    assert_close(got, exact(inputs, (1, 1), relu=epilogue is not None))


@pytest.mark.parametrize(
    ("weight", "changed"),
    [
        ((16, 16, 5, 5), {}),
        ((16, 16, 3, 3), {"stride": [2, 2]}),
        ((16, 16, 3, 3), {"dilation": [2, 2]}),
        ((16, 1, 3, 3), {"groups": 16}),
        ((24, 16, 3, 3), {}),
        ((16, 12, 3, 3), {}),
        ((16, 16, 3, 3), {"epilogue": [["aten.sigmoid"]]}),
        ((16, 16, 3, 3), {"epilogue": [["aten.leaky_relu", "negative_slope", 0.1]]}),
    ],
)
def test_other_convolutions_are_left_to_others(
    weight: tuple[int, ...], changed: dict[str, Literal]
) -> None:
    inputs: dict[str, Tensor | None] = {
        "x": images(1, 16 if "groups" in changed else weight[1], 12, 12),
        "w": torch.randn(weight),
        "b": None,
    }
    graph, weights = unit_graph(
        "aten.convolution", inputs, ["w", "b"], convolution_attributes(**changed)
    )

    assert VARIANT not in all_kernels(graph, weights)


def test_a_row_has_the_same_answer_beside_any_others() -> None:
    weights: dict[str, Tensor | None] = {"w": torch.randn(32, 16, 3, 3), "b": torch.randn(32)}
    one, loud = images(1, 16, 9, 9), 1e30 * images(1, 16, 9, 9)

    alone = run({"x": one, **weights}, 2)
    beside = run({"x": torch.cat([loud, one, loud]), **weights}, 2)

    torch.testing.assert_close(beside[1:2], alone, rtol=0, atol=0)


def test_a_merged_unit_is_cut_into_the_outputs_of_its_parts() -> None:
    inputs: dict[str, Tensor | None] = {
        "x": images(2, 16, 9, 9),
        "w": torch.randn(48, 16, 3, 3),
        "b": torch.randn(48),
    }
    graph, weights = unit_graph("aten.convolution", inputs, ["w", "b"], convolution_attributes())
    (unit,) = graph.operators
    merged = MergedUnit(unit, graph, weights, 1, ((2, 16, 9, 9), (2, 32, 9, 9)))
    kernel = CPU_KERNELS.cut(all_kernels(graph, weights)[VARIANT], merged, 2)

    parts = on_tensors(kernel, 2)(inputs["x"])

    assert isinstance(parts, tuple)
    wanted = exact(inputs, (1, 1), relu=False)
    for part, whole in zip(parts, wanted.split([16, 32], 1), strict=True):
        assert_close(part, whole)


def test_weights_are_transformed_once_for_all_plans_of_a_model() -> None:
    inputs: dict[str, Tensor | None] = {
        "x": images(1, 16, 9, 9),
        "w": torch.randn(16, 16, 3, 3),
        "b": None,
    }
    graph, weights = unit_graph("aten.convolution", inputs, ["w", "b"], convolution_attributes())
    (unit,), packed = graph.operators, PackedWeights()

    for threads in (1, 2):
        kernels = CPU_KERNELS.variants(unit, graph, arrays_of(weights), packed)
        next(each for each in kernels if each.variant == VARIANT).recipe_on(threads)

    assert len(list(packed.values())) == 1


@pytest.mark.parametrize("threads", range(1, 9))
def test_all_threads_have_as_much_to_do(threads: int) -> None:
    for tiles in (1, 2, 4, 16, 49, 196, 1369):
        for panels in (1, 2, 7, 16):
            blocks, shares = cut(tiles, panels, threads)
            assert 1 <= blocks <= tiles
            assert 1 <= shares <= panels
            assert math.ceil(tiles / blocks) <= 24
            assert blocks == tiles or blocks * shares % threads == 0
