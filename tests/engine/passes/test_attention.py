"""Attention as exporters write it becomes one unit with the same numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.families.attention import ATTENTION
from braid.engine.passes.attention import fuse_attention
from braid.engine.passes.specialise import specialise
from tests.engine.passes.drawing import Drawing, fused, kinds

Style = Callable[[Drawing, int, int, int, int], str]
"""Draws attention over "x" [batch, length, heads * width]; arguments: those three and width."""


def split(draw: Drawing, parts: int = 3) -> list[str]:
    """Parts of a projection of x, which one operator makes."""
    width = int(draw.inputs["x"].shape[-1])
    both = draw.op("aten.linear", "x", draw.constant(parts * width, width))
    return [
        draw.op("braid.slice", both, starts=[i * width], ends=[(i + 1) * width], axes=[2])
        for i in range(parts)
    ]


def in_heads(draw: Drawing, x: str, b: int, n: int, h: int, d: int) -> str:
    return draw.op(
        "aten.permute", draw.op("braid.reshape", x, shape=[b, n, h, d]), dims=[0, 2, 1, 3]
    )


def joined(draw: Drawing, y: str, b: int, n: int, h: int, d: int) -> str:
    y = draw.op("aten.permute", y, dims=[0, 2, 1, 3])
    return draw.op("braid.reshape", y, shape=[b, n, h * d])


def product(draw: Drawing, q: str, k: str) -> str:
    return draw.op("aten.matmul", q, draw.op("aten.permute", k, dims=[0, 1, 3, 2]))


def number(draw: Drawing, value: float) -> str:
    return draw.constant(name=f"n{len(draw.weights)}", value=value)


def softmax(draw: Drawing, scores: str) -> str:
    return draw.op("aten.softmax", scores, dim=-1)


def plain(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """Scores divided behind the product."""
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    scores = draw.op("aten.div", product(draw, q, k), number(draw, math.sqrt(d)))
    return joined(draw, draw.op("aten.matmul", softmax(draw, scores), v), b, n, h, d)


def dynamo(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """As torch's exporter writes it: roots of the scale on both sides, NaN that become 0."""
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    root = number(draw, d**-0.25)
    k = draw.op("aten.mul", draw.op("aten.permute", k, dims=[0, 1, 3, 2]), root)
    scores = draw.op("aten.matmul", draw.op("aten.mul", q, root), k)
    draw.weights["hidden"] = torch.zeros(b, 1, 1, n)
    draw.weights["hidden"][:, :, :, n // 2 :] = -torch.inf
    draw.weights["hidden"][0] = -torch.inf  # no key is left
    odds = softmax(draw, draw.op("aten.add", scores, "hidden"))
    odds = draw.op("aten.where", draw.op("aten.isnan", odds), number(draw, 0.0), odds)
    return joined(draw, draw.op("aten.matmul", odds, v), b, n, h, d)


def moving_mask(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """A mask that the model computes, expanded to the scores."""
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    mask = draw.op("braid.slice", "x", starts=[0], ends=[1], axes=[2])
    mask = draw.op("braid.reshape", mask, shape=[b, 1, 1, n])
    mask = draw.op("braid.expand", mask, shape=[b, 1, n, n])
    scores = draw.op("aten.mul", product(draw, q, k), number(draw, 1 / math.sqrt(d)))
    odds = softmax(draw, draw.op("aten.add", mask, scores))
    return joined(draw, draw.op("aten.matmul", odds, v), b, n, h, d)


def chosen_scores(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """Causal by a choice, then a sum, as in GPT-2."""
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    draw.weights["seen"] = torch.ones(1, 1, n, n, dtype=torch.bool).tril()
    draw.weights["pad"] = torch.zeros(b, 1, 1, n)
    draw.weights["pad"][:, :, :, :1] = -1e4
    scores = draw.op("aten.where", "seen", product(draw, q, k), number(draw, -1e9))
    odds = softmax(draw, draw.op("aten.add", scores, "pad"))
    return joined(draw, draw.op("aten.matmul", odds, v), b, n, h, d)


def causal(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    draw.weights["ahead"] = torch.full((n, n), -torch.inf).triu(1)
    odds = softmax(draw, draw.op("aten.add", product(draw, q, k), "ahead"))
    return joined(draw, draw.op("aten.matmul", odds, v), b, n, h, d)


def hidden_keys(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """Keys that a constant hides by a choice of the other operand."""
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    draw.weights["padding"] = torch.arange(n).reshape(1, 1, 1, n) >= max(1, n - 2)
    scores = draw.op("aten.where", "padding", number(draw, -3e38), product(draw, q, k))
    return joined(draw, draw.op("aten.matmul", softmax(draw, scores), v), b, n, h, d)


def one_projection(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """Queries, keys and values are selected of five axes, as in vision transformers."""
    (both,) = [draw.op("aten.linear", "x", draw.constant(3 * h * d, h * d))]
    both = draw.op("braid.reshape", both, shape=[b, n, 3, h, d])
    both = draw.op("aten.permute", both, dims=[2, 0, 3, 1, 4])
    q, k, v = (draw.op("aten.select", both, dim=0, index=i) for i in range(3))
    q = draw.op("aten.mul", q, number(draw, 1 / math.sqrt(d)))
    return joined(draw, draw.op("aten.matmul", softmax(draw, product(draw, q, k)), v), b, n, h, d)


def rows_first(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """Heads in the batch and the length in front, as in torch's MultiheadAttention."""
    x = draw.op("aten.permute", "x", dims=[1, 0, 2])
    parts = [draw.op("aten.linear", x, draw.constant(h * d, h * d)) for _ in range(3)]
    q, k, v = (
        draw.op("aten.permute", draw.op("braid.reshape", part, shape=[n, b * h, d]), dims=[1, 0, 2])
        for part in parts
    )
    scores = draw.op("aten.matmul", q, draw.op("aten.permute", k, dims=[0, 2, 1]))
    y = draw.op("aten.matmul", softmax(draw, scores), v)
    y = draw.op("braid.reshape", draw.op("aten.permute", y, dims=[1, 0, 2]), shape=[n * b, h * d])
    return draw.op("aten.linear", y, draw.constant(h * d, h * d))


def windows(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """A bias by position, and masks of windows on five axes, as in Swin."""
    q, k, v = (in_heads(draw, part, b, n, h, d) for part in split(draw))
    scores = draw.op("aten.add", product(draw, q, k), draw.constant(1, h, n, n))
    draw.weights["borders"] = torch.full((1, b, 1, n, n), -100.0).triu(1)
    scores = draw.op("braid.reshape", scores, shape=[1, b, h, n, n])
    scores = draw.op("aten.add", scores, "borders")
    scores = draw.op("braid.reshape", scores, shape=[b, h, n, n])
    return joined(draw, draw.op("aten.matmul", softmax(draw, scores), v), b, n, h, d)


def one_head(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    q, k, v = split(draw)
    scores = draw.op("aten.matmul", q, draw.op("aten.permute", k, dims=[0, 2, 1]))
    return draw.op("aten.matmul", softmax(draw, scores), v)


def repeated_heads(draw: Drawing, b: int, n: int, h: int, d: int) -> list[str]:
    """Queries, keys and values; each head of the latter two stands for several, by an expand."""
    groups = next(count for count in (3, 2, 1) if h % count == 0)
    made = [in_heads(draw, draw.op("aten.linear", "x", draw.constant(h * d, h * d)), b, n, h, d)]
    for _ in range(2):
        part = draw.op("aten.linear", "x", draw.constant(h // groups * d, h * d))
        part = draw.op("braid.unsqueeze", in_heads(draw, part, b, n, h // groups, d), axes=[2])
        part = draw.op("braid.expand", part, shape=[b, h // groups, groups, n, d])
        made.append(draw.op("braid.reshape", part, shape=[b, h, n, d]))
    return made


def shared_heads(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """Heads of keys for several of queries each, as in Llama."""
    q, k, v = repeated_heads(draw, b, n, h, d)
    return joined(draw, draw.op("aten.matmul", softmax(draw, product(draw, q, k)), v), b, n, h, d)


def shared_by_dynamo(draw: Drawing, b: int, n: int, h: int, d: int) -> str:
    """The same as torch's exporter writes it: keys are transposed with batches and heads joined."""
    q, k, v = repeated_heads(draw, b, n, h, d)
    root = number(draw, d**-0.25)
    k = draw.op("aten.permute", draw.op("braid.reshape", k, shape=[b * h, n, d]), dims=[0, 2, 1])
    k = draw.op("aten.mul", draw.op("braid.reshape", k, shape=[b, h, d, n]), root)
    odds = softmax(draw, draw.op("aten.matmul", draw.op("aten.mul", q, root), k))
    odds = draw.op("aten.where", draw.op("aten.isnan", odds), number(draw, 0.0), odds)
    return joined(draw, draw.op("aten.matmul", odds, v), b, n, h, d)


STYLES: list[Style] = [
    *(
        plain,
        shared_heads,
        shared_by_dynamo,
        dynamo,
        moving_mask,
        chosen_scores,
        causal,
        hidden_keys,
        one_projection,
    ),
    *(rows_first, windows, one_head),
]


def drawn(style: Style, b: int, n: int, h: int, d: int) -> tuple[OpGraph, dict[str, Tensor]]:
    """Static graph of a style, nothing of it fused."""
    draw = Drawing(x=(b, n, h * d))
    template, weights = draw.graph(style(draw, b, n, h, d))
    for name, tensor in weights.items():
        if tensor.dim() == 2 and tensor.is_floating_point() and bool((tensor > 0).all()):
            weights[name] = (tensor - 1) / math.sqrt(h * d)
    return specialise(template, weights, template.inputs)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 7, 2, 8), (3, 1, 1, 1)], ids=str)
def test_every_style_becomes_one_unit(style: Style, shape: tuple[int, int, int, int]) -> None:
    names = kinds(fused(fuse_attention, *drawn(style, *shape)))

    assert names.count("attention_on_views") == 1
    assert not {"matmul", "softmax", "where", "mul", "div"} & {*names}


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
def test_views_around_attention_are_gone(style: Style) -> None:
    graph, constants = drawn(style, 2, 5, 3, 4)

    names = kinds(fuse_attention(graph, constants))

    views = [name for name in names if name in ("permute", "reshape", "slice", "select")]
    assert views == (["permute"] if style is rows_first else [])  # of the input


def test_a_constant_causal_mask_is_no_operand() -> None:
    graph, constants = drawn(causal, 2, 5, 3, 4)

    (unit,) = [op for op in fuse_attention(graph, constants).operators if op.kind == ATTENTION]

    assert unit.attributes["causal"] is True
    assert len(unit.inputs) == 3


def test_a_finite_causal_mask_beside_another_one_stays() -> None:
    graph, constants = drawn(chosen_scores, 2, 5, 3, 4)

    (unit,) = [op for op in fuse_attention(graph, constants).operators if op.kind == ATTENTION]

    assert unit.attributes["causal"] is False
    assert len(unit.inputs) == 5


def test_scores_that_others_read_stay() -> None:
    draw = Drawing(x=(1, 5, 8))
    q, k, v = split(draw)
    scores = draw.op("aten.matmul", q, draw.op("aten.permute", k, dims=[0, 2, 1]))
    odds = softmax(draw, scores)
    graph, constants = draw.static(draw.op("aten.matmul", odds, v), odds)

    assert fuse_attention(graph, constants) == graph


@pytest.mark.parametrize("dim", [1, -2])
def test_a_softmax_over_queries_is_no_attention(dim: int) -> None:
    draw = Drawing(x=(1, 5, 8))
    q, k, v = split(draw)
    scores = draw.op("aten.matmul", q, draw.op("aten.permute", k, dims=[0, 2, 1]))
    y = draw.op("aten.matmul", draw.op("aten.softmax", scores, dim=dim), v)
    graph, constants = draw.static(y)

    assert fuse_attention(graph, constants) == graph


def test_a_scaled_mask_is_no_mask() -> None:
    draw = Drawing(x=(1, 5, 8))
    q, k, v = split(draw)
    scores = draw.op("aten.matmul", q, draw.op("aten.permute", k, dims=[0, 2, 1]))
    scores = draw.op("aten.add", scores, draw.constant(5, 5))
    scores = draw.op("aten.mul", scores, number(draw, 0.5))
    graph, constants = draw.static(draw.op("aten.matmul", softmax(draw, scores), v))

    assert fuse_attention(graph, constants) == graph


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("mask", ["", "shown", "added"])
@pytest.mark.parametrize("causal", [False, True])
def test_onnx_own_operator_is_the_same_unit(is_flat: bool, mask: str, causal: bool) -> None:
    draw = Drawing(x=(2, 5, 12))
    parts = split(draw)
    if not is_flat:
        parts = [in_heads(draw, part, 2, 5, 3, 4) for part in parts]
    draw.weights["shown"] = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    draw.weights["shown"][0, :, :, 3:] = False
    draw.weights["added"] = torch.zeros(1, 3, 5, 5).masked_fill(torch.arange(5) == 2, -torch.inf)
    operator = Operator(
        "attention",
        "braid.attention",
        (*parts, mask, "", "", ""),
        ("y", "keys", "values"),
        {"q_heads": 3, "kv_heads": 3, "causal": causal, "scale": 0.3},
    )
    draw.operators.append(operator)
    static = draw.static("y" if is_flat else joined(draw, "y", 2, 5, 3, 4))

    assert kinds(fused(fuse_attention, *static)) == ["linear", "attention_on_views"]


def test_shared_heads_of_keys_are_read_where_they_are() -> None:
    draw = Drawing(q=(2, 4, 5, 8), k=(2, 2, 6, 8))
    draw.operators.append(
        Operator("attention", "braid.attention", ("q", "k", "k"), ("y", "keys", "values"), {})
    )

    assert kinds(fused(fuse_attention, *draw.static("y"))) == ["attention_on_views"]


@pytest.mark.parametrize(
    ("shape", "folded"),
    [((2, 3, 4, 5), ["permute"]), ((24, 5), None), ((120,), None), ((3, 2, 20), None)],
)
def test_only_reshapes_that_join_outer_axes_are_dropped(
    shape: tuple[int, ...], folded: list[str] | None
) -> None:
    draw = Drawing(x=shape)
    rows = draw.op("braid.reshape", "x", shape=[6, 4, 5])
    swapped = draw.op("aten.permute", rows, dims=[0, 2, 1])
    graph, constants = draw.static(draw.op("braid.reshape", swapped, shape=[2, 3, 5, 4]))

    left = kinds(fused(fuse_attention, graph, constants))
    assert left == (folded or ["reshape", "permute", "reshape"])
