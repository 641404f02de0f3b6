"""Rotary embeddings as exporters write them become one unit with the same numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.families.attention import RotatedHeads, rotate_heads
from braid.engine.passes.rotations import fuse_rotations
from braid.engine.passes.run import fuse_static
from tests.engine.passes.drawing import Drawing, fused, kinds

Halves = Callable[[Drawing, str, int], tuple[str, str]]
FAR = 2**63 - 1  # how exporters write "to the end"


def sliced(draw: Drawing, x: str, half: int) -> tuple[str, str]:
    first = draw.op("braid.slice", x, starts=[0], ends=[half], axes=[3], steps=[1])
    return first, draw.op("braid.slice", x, starts=[half], ends=[FAR], axes=[3], steps=[1])


def sliced_from_the_end(draw: Drawing, x: str, half: int) -> tuple[str, str]:
    first = draw.op("braid.slice", x, starts=[0], ends=[-half], axes=[-1])
    return first, draw.op("braid.slice", x, starts=[-half], ends=[FAR], axes=[-1])


def turned(
    draw: Drawing, x: str, width: int, halves: Halves = sliced, *, swapped: bool = False
) -> str:
    """A rotation of x [batch, heads, length, width] by the values cos and sin."""
    first, second = halves(draw, x, width // 2)
    both = [draw.op("aten.neg", second), first]
    parts = draw.op("aten.cat", *(both[::-1] if swapped else both), dim=-1)
    straight = draw.op("aten.mul", x, "cos")
    return draw.op("aten.add", straight, draw.op("aten.mul", "sin", parts))


def drawn(
    shape: tuple[int, int, int, int] = (2, 5, 3, 8), *, angles: int = 1, rotated: int = 0
) -> tuple[Drawing, str]:
    """Heads of x [batch, length, heads, width], and constants cos and sin."""
    batch, length, _, width = shape
    draw = Drawing(x=shape)
    for name in ("cos", "sin"):
        draw.constant(batch if angles > 1 else 1, 1, length, rotated or width, name=name)
    return draw, draw.op("aten.permute", "x", dims=[0, 2, 1, 3])


def in_part(
    shape: tuple[int, int, int, int], kept: int, *, lost: int = 0
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Heads with ``kept`` numbers more at the end, of which the first ``lost`` are left out."""
    batch, length, count, width = shape
    draw, heads = drawn((batch, length, count, width + kept), rotated=width)
    first = draw.op("braid.slice", heads, starts=[0], ends=[width], axes=[3], steps=[1])
    rest = draw.op("braid.slice", heads, starts=[width + lost], ends=[FAR], axes=[3], steps=[1])
    return draw.static(draw.op("aten.cat", turned(draw, first, width), rest, dim=-1))


@pytest.mark.parametrize("halves", [sliced, sliced_from_the_end], ids=lambda each: each.__name__)
@pytest.mark.parametrize("angles", [1, 2])
@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (2, 1, 1, 2)], ids=str)
def test_every_style_is_one_unit(
    halves: Halves, angles: int, shape: tuple[int, int, int, int]
) -> None:
    draw, heads = drawn(shape, angles=angles)

    graph = fused(fuse_rotations, *draw.static(turned(draw, heads, shape[3], halves)))

    assert kinds(graph) == ["rotate_heads"]


def test_a_number_behind_it_is_part_of_it() -> None:
    draw, heads = drawn()
    turned(draw, heads, 8)
    steps: list[Literal] = [["braid.affine", "scale", 0.25, "shift", 0.0]]
    last = draw.operators.pop()
    draw.op("aten.add", *last.inputs, epilogue=steps)

    graph = fused(fuse_rotations, *draw.static(draw.operators[-1].outputs[0]))

    assert kinds(graph) == ["rotate_heads"]


@pytest.mark.parametrize("kept", [1, 6])
def test_the_rest_of_each_head_may_stay(kept: int) -> None:

    assert kinds(fused(fuse_rotations, *in_part((2, 5, 3, 8), kept))) == ["rotate_heads"]


def test_a_rest_that_is_not_all_of_it_is_joined_as_before() -> None:
    graph, constants = in_part((2, 5, 3, 8), 4, lost=1)

    assert kinds(fused(fuse_rotations, graph, constants))[-1] == "cat"


def test_heads_are_read_where_a_projection_has_them() -> None:
    """As in GPT-NeoX: queries, keys and values of each head side by side."""
    draw, _ = drawn((2, 5, 3, 24), rotated=8)
    heads = draw.op("aten.permute", "x", dims=[0, 2, 1, 3])
    draw.operators.append(
        Operator("parts", "braid.split", (heads,), ("q", "k", "v"), {"axis": 3, "parts": 3})
    )
    graph, constants = draw.static(turned(draw, "q", 8), turned(draw, "k", 8))

    units = fused(fuse_rotations, graph, constants).operators

    assert [(op.kind, op.inputs[0]) for op in units] == [("braid.rotate_heads", "x")] * 2


def test_what_is_no_rotation_stays() -> None:
    draw, heads = drawn()

    graph = fused(fuse_rotations, *draw.static(turned(draw, heads, 8, swapped=True)))

    assert "rotate_heads" not in kinds(graph)


def test_whole_numbers_stay() -> None:
    draw, heads = drawn()
    draw.inputs["x"] = TensorType("INT64", (2, 5, 3, 8))
    for name in ("cos", "sin"):
        draw.weights[name] = torch.ones(1, 1, 5, 8, dtype=torch.int64)

    assert "rotate_heads" not in kinds(fuse_rotations(*draw.static(turned(draw, heads, 8))))


def test_what_others_read_stays() -> None:
    draw, heads = drawn()
    result = turned(draw, heads, 8)
    halves = next(op.outputs[0] for op in draw.operators if op.kind == "aten.cat")

    assert "rotate_heads" not in kinds(fuse_rotations(*draw.static(result, halves)))


def test_attention_reads_rotated_heads_where_they_are() -> None:
    draw, heads = drawn()
    turned_heads = turned(draw, heads, 8)
    keys = draw.op("aten.permute", turned_heads, dims=[0, 1, 3, 2])
    scores = draw.op("aten.matmul", turned_heads, keys)
    odds = draw.op("aten.softmax", scores, dim=-1)

    graph = fused(fuse_static, *draw.static(draw.op("aten.matmul", odds, heads)))

    assert kinds(graph) == ["rotate_heads", "attention_on_views"]


@torch.inference_mode()
def test_numbers_are_those_of_the_formula() -> None:
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    angle = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    pairs = torch.view_as_complex(torch.stack(x.transpose(1, 2).chunk(2, -1), -1))
    wanted = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle))
    cos, sin = (torch.cat([function(angle)] * 2, -1) for function in (torch.cos, torch.sin))

    got = rotate_heads(x, cos, sin, RotatedHeads([2, 3, 5, 8], [0, 120, 8, 24, 1], 1.0))

    torch.testing.assert_close(got, torch.cat(wanted.unbind(-1), -1))
    assert got.is_contiguous()
