"""Operators that others say, against torch in float64; and what stays as it is."""

import random

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.kinds import call
from braid.engine.passes.specialise import interpret, specialise
from tests.engine.cpu.test_kernels import unit_graph


def said(
    kind: str, inputs: dict[str, Tensor], constants: list[str], **attributes: Literal
) -> list[str]:
    """The kinds in the place of a unit, which together answer as it does."""
    graph, weights = unit_graph(kind, {**inputs}, constants, attributes)
    named = {name: tensor for name, tensor in inputs.items() if name in graph.inputs}
    (got,) = interpret(graph, weights, named).values()
    exact = [x.double() if x.is_floating_point() else x for x in inputs.values()]
    (wanted,) = call(Operator("unit", kind, (*inputs,), ("y",), attributes), exact)
    torch.testing.assert_close(got, wanted.to(got.dtype), rtol=1e-5, atol=1e-5)
    return [op.kind for op in graph.operators]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bclhn,bcshn->bclsh", [(2, 3, 4, 5, 6), (2, 3, 7, 5, 6)]),
        ("bzch,bzhpn->bchpn", [(2, 3, 4, 5), (2, 3, 5, 6, 7)]),
        ("...qhd,...khd->...hqk", [(2, 3, 4, 5, 6), (2, 3, 7, 5, 6)]),
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk -> ki", [(3, 4), (4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bi,bi->b", [(3, 4), (3, 4)]),
        ("bij,bij->bij", [(3, 4, 2), (3, 4, 2)]),
    ],
)
def test_products_become_those_of_matrices(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = {name: torch.randn(shape) for name, shape in zip("ab", shapes, strict=True)}

    kinds = said("aten.einsum", inputs, [], equation=equation)

    assert "aten.matmul" in kinds
    assert "aten.einsum" not in kinds


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii->i", [(3, 3)]),
        ("ij,jk->i", [(3, 4), (4, 5)]),
        ("...i,...i->...", [(2, 1, 4), (3, 4)]),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
        ("ij,jk", [(3, 4), (4, 5)]),
    ],
)
def test_other_sums_of_products_stay(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = {f"x{at}": torch.randn(shape) for at, shape in enumerate(shapes)}

    assert said("aten.einsum", inputs, [], equation=equation) == ["aten.einsum"]


def test_random_sums_of_products() -> None:
    chance = random.Random(7)
    for _ in range(300):
        extents = {name: chance.randint(1, 4) for name in "abcdef"}
        left, right = (chance.sample("abcdef", chance.randint(1, 5)) for _ in range(2))
        alone = [n for n in {*left, *right} if (n in left) is not (n in right)]
        result = [*alone, *[n for n in left if n in right and chance.random() < 0.5]]
        chance.shuffle(result)
        inputs = {
            name: torch.randn([extents[n] for n in names])
            for name, names in (("x", left), ("y", right))
        }
        equation = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
        assert "aten.matmul" in said("aten.einsum", inputs, [], equation=equation)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("kind", ["braid.depth_to_space", "braid.space_to_depth"])
def test_blocks_are_views(kind: str, mode: str) -> None:
    kinds = said(kind, {"x": torch.randn(2, 18, 6, 9)}, [], block=3, mode=mode)

    assert kinds == ["braid.reshape", "aten.permute", "braid.reshape"]


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_paddings_by_copies_are_gathers(mode: str) -> None:
    x = torch.randn(2, 4, 5)

    assert said("braid.pad", {"x": x}, [], mode=mode, pads=[0, 0, 3, 0, 0, 0]) == ["braid.gather"]
    kinds = said("braid.pad", {"x": x}, [], mode=mode, pads=[1, 2, 1, 3], axes=[1, -1])
    assert kinds == ["braid.gather"] * 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
def test_integers_are_padded_by_joining(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (2, 3, 4)).to(dtype)

    kinds = said("braid.pad", {"x": x}, [], mode="constant", value=1, pads=[0, 1, 0, 0, 2, 3])
    assert kinds == ["aten.cat"] * 2


@pytest.mark.parametrize("limits", [{"min": 0}, {"max": 3}, {"min": -1, "max": 2}], ids=str)
def test_integers_are_clamped_by_extremes(limits: dict[str, Literal]) -> None:
    x = torch.arange(-5, 6)

    assert len(said("aten.clamp", {"x": x}, [], **limits)) == len(limits)
    assert said("aten.clamp", {"x": x.float()}, [], **limits) == ["aten.clamp"]


def test_resizing_to_the_same_size_is_nothing() -> None:
    x = torch.randn(1, 3, 5, 7)
    same: dict[str, Literal] = {"mode": "linear", "sizes": [1, 3, 5, 7]}

    assert said("braid.resize", {"x": x}, [], **same) == []
    assert said("braid.resize", {"x": x}, [], mode="linear", scales=[1.0, 1.0, 1.0, 1.1]) != []


def test_norms_of_batches_that_are_no_images() -> None:
    norm = {name: torch.rand(6) + 0.5 for name in ("scale", "shift", "mean", "variance")}
    for shape in ((5, 6), (2, 6, 9), (2, 6, 3, 4, 5)):
        inputs = {"x": torch.randn(shape), **norm}
        assert said("aten.batch_norm", inputs, [*norm], eps=1e-5) == ["aten.mul", "aten.add"]
    images = {"x": torch.randn(2, 6, 3, 3), **norm}
    assert said("aten.batch_norm", images, [*norm], eps=1e-5) == ["aten.batch_norm"]


def test_updates_at_known_places() -> None:
    x = torch.randn(4, 5, 3)
    places = torch.tensor([[0, -1], [3, 2], [1, 0]])
    inputs = {"x": x, "places": places, "updates": torch.randn(3, 3)}

    assert "braid.gather" in said("braid.scatter_nd", inputs, ["places"])
    assert said("braid.scatter_nd", inputs, []) == ["braid.scatter_nd"]
    inputs["places"] = torch.tensor([[0, 1], [0, 1], [1, 0]])  # which of two updates wins?
    graph, _ = unit_graph("braid.scatter_nd", {**inputs}, ["places"], {})
    assert [op.kind for op in graph.operators] == ["braid.scatter_nd"]
    added = said("braid.scatter_nd", inputs, ["places"], reduction="add")
    assert added == ["braid.scatter_nd"]


def test_products_of_a_few() -> None:
    x = torch.randn(2, 3, 5)

    assert said("braid.prod", {"x": x}, [], dims=[1], keepdim=False)[-1] == "aten.mul"
    assert said("braid.prod", {"x": x}, [], dims=[1], keepdim=True)[-1] == "braid.reshape"
    assert said("braid.prod", {"x": x}, [], dims=[2], keepdim=True) == ["braid.prod"]


def test_names_of_the_model_are_left_to_it() -> None:
    x, block = TensorType("FP32", (1, 4, 2, 2)), {"block": 2}
    operators = (
        Operator("y.1", "aten.relu", ("x",), ("y.2",)),
        Operator("y", "braid.depth_to_space", ("y.2",), ("y",), {**block}),
    )
    graph = OpGraph("named", {"x": x}, {"y": "y", "other": "y.2"}, {}, operators)

    static, _ = specialise(graph, {}, {"x": x})

    assert len({op.name for op in static.operators}) == len(static.operators) == 4
    given = torch.randn(1, 4, 2, 2)
    outputs = interpret(static, {}, {"x": given})
    assert torch.equal(outputs["other"], given.relu())
    assert torch.equal(outputs["y"], torch.pixel_shuffle(given.relu(), 2))
