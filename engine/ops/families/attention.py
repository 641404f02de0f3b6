"""Scaled dot product attention with everything ONNX's operator knows, as one unit.

The plain case runs as torch's fused kernel; caps, caches, asked-for scores and masks that may hide
a whole row run step by step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.families.shape import check_shape
from braid.engine.ops.kinds import operator
from braid.engine.ops.value_ranges import Shape, ValueRange


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Attributes of ``braid.attention``."""

    q_heads: int | None = None  # heads of three-dimensional queries
    kv_heads: int | None = None  # heads of three-dimensional keys and values
    scale: float | None = None  # of the scores, 1 / sqrt(head) if None
    causal: bool = False  # a query sees keys up to its own position
    softcap: float = 0.0  # scores become softcap * tanh(scores / softcap); 0 for none
    left: int = -1  # how many keys before its position a query sees, -1 for all
    right: int = -1  # the same behind its position
    precision: str | None = None  # element type of the softmax
    scores: int | None = None  # fourth result: 0 raw, 1 capped, 2 masked scores, 3 probabilities


def _valid_keys(shapes: Sequence[Shape | None], _: Mapping[str, Any]) -> Iterable[ValueRange]:
    if len(shapes) > 6 and shapes[6] is not None:
        keys, past = shapes[1], shapes[4]
        assert keys is not None
        yield ValueRange(6, "length", 0, keys[-2] + (past[-2] if past is not None else 0))


@operator("braid.attention", values=_valid_keys, options=AttentionOptions)
def attention(
    q: Tensor, k: Tensor, v: Tensor, *context: Tensor | None, options: AttentionOptions
) -> tuple[Tensor, ...]:
    """Attention over [batch, heads, length, head] or [batch, length, heads * head].

    Fewer heads of keys than of queries are shared. ``context``, each None if absent: a mask,
    boolean (True takes part) or added to the scores, whose short last axis hides the rest; past
    keys and past values, which go before the keys and values; the number of keys of each row that
    are not padding, [batch].

    Returns:
        The attended values, the keys and the values with their cache, and the scores asked for.
    """
    mask, past_k, past_v, valid = (*context, None, None, None, None)[:4]
    check_shape("lengths", valid, q.shape[:1])
    flat = q.dim() == 3
    if flat:
        if not options.q_heads or not options.kv_heads:
            raise ValueError("three-dimensional operands need the numbers of heads")
        q, k, v = (
            _split(x, heads)
            for x, heads in ((q, options.q_heads), (k, options.kv_heads), (v, options.kv_heads))
        )
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    hidden = _hidden(q, k, past_k, valid, options)
    plain = mask is None and hidden is None and not options.softcap
    if plain and options.precision is None and options.scores is None:
        scale = options.scale or 1 / math.sqrt(q.shape[-1])
        shared = q.shape[1] // k.shape[1] > 1
        y = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=shared)
        return (_join(y) if flat else y, k, v)
    y, stages = _step_by_step((q, k, v), mask, hidden, options)
    results = (_join(y) if flat else y, k, v)
    return results if options.scores is None else (*results, stages[options.scores])


def _step_by_step(
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    hidden: Tensor | None,
    options: AttentionOptions,
) -> tuple[Tensor, list[Tensor]]:
    """The attended values, and the scores: raw, capped, masked, as probabilities."""
    q, k, v = qkv
    root = math.sqrt(options.scale or 1 / math.sqrt(q.shape[-1]))
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    raw = torch.matmul(q * root, (k * root).transpose(-1, -2))
    cap = options.softcap
    capped = cap * torch.tanh(raw / cap) if cap else raw
    masked = _masked(capped, mask, hidden)
    wide = masked.to(torch_dtype(options.precision)) if options.precision else masked
    nothing = (wide == -torch.inf).all(-1, keepdim=True)
    odds = torch.where(nothing, torch.zeros_like(wide), torch.softmax(wide, -1)).to(q.dtype)
    return torch.matmul(odds, v), [raw, capped, masked, odds]


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _hidden(
    q: Tensor, k: Tensor, past_k: Tensor | None, valid: Tensor | None, options: AttentionOptions
) -> Tensor | None:
    """True where a query may not see a key, [batch or 1, 1, queries, keys]; None if it sees all."""
    left, right = options.left, options.right
    if not options.causal and left < 0 and right < 0 and valid is None:
        return None
    queries, keys = q.shape[2], k.shape[2]
    key = torch.arange(keys, device=q.device)
    place = torch.arange(queries, device=q.device).reshape(1, 1, queries, 1)
    hidden = torch.zeros((1, 1, queries, keys), dtype=torch.bool, device=q.device)
    if past_k is not None:
        place = place + past_k.shape[2]
    elif valid is not None:
        place = place + (valid.reshape(-1, 1, 1, 1) - queries)
    if options.causal:
        hidden = hidden | (key > place)
    if left >= 0:
        hidden = hidden | (key < place - left)
    if right >= 0:
        hidden = hidden | (key > place + right)
    if valid is not None:
        hidden = hidden | (key >= valid.reshape(-1, 1, 1, 1))
    return hidden


def _masked(scores: Tensor, mask: Tensor | None, hidden: Tensor | None) -> Tensor:
    if mask is not None:
        missing = scores.shape[-1] - mask.shape[-1] if mask.dim() and mask.shape[-1] > 1 else 0
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        if missing:
            mask = F.pad(mask, [0, missing], value=-torch.inf)
        scores = scores + mask
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


ATTENTION = "braid.attention_on_views"  # kind of ``attention_on_views``


@dataclass(frozen=True, slots=True)
class ViewedAttention:
    """Attributes of ``braid.attention_on_views``.

    A view is an offset and the distances between neighbours of a batch, head, row and column, in
    elements of a dense tensor.
    """

    batches: int
    heads: int
    queries: int
    keys: int
    width: int  # of queries and keys
    value_width: int
    q: Sequence[int]  # views
    k: Sequence[int]
    v: Sequence[int]
    out: Sequence[int]  # distances between batches, heads, rows of the result
    shape: Sequence[int]  # of the result
    scale: float  # of the scores
    masks: Sequence[Sequence[Any]] = ()  # of each: kind, number, view
    causal: bool = False  # a query sees keys up to its own position
    zero_hidden: bool = False  # rows whose scores are all -inf give 0, not NaN
    shared: int = 1  # how many heads of queries, one after the other, read a head of keys


ADDED, SHOWN, HIDDEN = MASKS = "added", "shown", "hidden"
"""Kinds of masks: added to the scores; true where the score stays, else it becomes the mask's
number; true where it becomes that."""

MOST_MASKS = 4  # of one unit, as engine/cpu/native/vectors.c has room for


@operator(ATTENTION, how=ViewedAttention)
def attention_on_views(
    q: Tensor, k: Tensor, v: Tensor, *masks: Tensor, how: ViewedAttention
) -> Tensor:
    """Attention over heads that lie anywhere in dense tensors, and its result in any order.

    Made by ``fuse_attention`` of views, products, masks and a softmax. Masks apply in order.
    """
    extents = how.batches, how.heads // how.shared
    queries = _strided(q, (how.batches, how.heads, how.queries, how.width), how.q)
    keys = _strided(k, (*extents, how.keys, how.width), how.k)
    values = _strided(v, (*extents, how.keys, how.value_width), how.v)
    if how.shared > 1:
        keys, values = (x.repeat_interleave(how.shared, 1) for x in (keys, values))
    if masks:
        result = _through_masks((queries, keys, values), masks, how)
    else:
        result = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=how.causal, scale=how.scale
        )
    placed = torch.empty(result.numel(), dtype=result.dtype, device=result.device)
    placed.as_strided(result.shape, (*how.out, 1)).copy_(result)
    return placed.reshape(tuple(how.shape))


def _through_masks(
    qkv: tuple[Tensor, Tensor, Tensor], masks: Sequence[Tensor], how: ViewedAttention
) -> Tensor:
    queries, keys, values = qkv
    scores = torch.matmul(queries, keys.transpose(-1, -2)) * how.scale
    for mask, (kind, number, *view) in zip(masks, how.masks, strict=True):
        placed = _strided(mask, scores.shape, view)
        if kind == ADDED:
            scores = scores + placed
        else:
            scores = scores.masked_fill(placed if kind == HIDDEN else ~placed, number)
    if how.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    odds = torch.softmax(scores, -1)
    if how.zero_hidden:
        odds = odds.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
    return torch.matmul(odds, values)


def _strided(x: Tensor, shape: Sequence[int], view: Sequence[int]) -> Tensor:
    offset, *strides = view
    return x.contiguous().as_strided(tuple(shape), strides, offset)


ROTATE = "braid.rotate_heads"  # kind of ``rotate_heads``


@dataclass(frozen=True, slots=True)
class RotatedHeads:
    """Attributes of ``braid.rotate_heads``."""

    shape: Sequence[int]  # [batch, heads, length, width]
    view: Sequence[int]  # where the heads begin, and distances between neighbours along each axis
    scale: float  # of the result


@operator(ROTATE, how=RotatedHeads)
def rotate_heads(x: Tensor, cos: Tensor, sin: Tensor, how: RotatedHeads) -> Tensor:
    """Turn the halves of each head by its position (Su et al., 2021; halves as in GPT-NeoX).

    Made by ``fuse_rotations``. ``cos`` and ``sin`` are [batch or 1, 1, length, rotated]; what
    follows in a head stays as it is. Returns the heads in the order of their shape.
    """
    heads = _strided(x, how.shape, how.view)
    rotated, rest = heads.tensor_split([cos.shape[-1]], -1)
    first, second = rotated.chunk(2, -1)
    turned = rotated * cos + torch.cat((-second, first), -1) * sin
    return (torch.cat((turned, rest), -1) * how.scale).contiguous()
