"""Scaled dot product attention with everything ONNX's operator knows, as one unit.

The plain case runs as torch's fused kernel; caps, caches, asked-for scores and masks that may hide
a whole row run step by step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.kinds import operator


@operator("braid.attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
    valid: Tensor | None = None,
    *,
    q_heads: int | None = None,
    kv_heads: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    left: int = -1,
    right: int = -1,
    precision: str | None = None,
    scores: int | None = None,
) -> tuple[Tensor, ...]:
    """Attention over [batch, heads, length, head] or [batch, length, heads * head].

    Args:
        q, k, v: queries, keys, values; fewer heads of keys than of queries are shared.
        mask: boolean (True takes part) or added to the scores; a short last axis hides the rest.
        past_k, past_v: cache that goes before the keys and values.
        valid: number of keys of each row that are not padding.
        q_heads, kv_heads: heads of three-dimensional operands.
        scale: of the scores, 1 / sqrt(head) if None.
        causal: a query sees keys up to its own position.
        softcap: softcap * tanh(scores / softcap), 0 for none.
        left, right: how far a query sees, -1 for no limit.
        precision: element type of the softmax.
        scores: which scores the fourth result is: 0 raw, 1 capped, 2 masked, 3 probabilities;
            None if nobody asks.

    Returns:
        The attended values, the keys and the values with their cache, and the asked scores.
    """
    flat = q.dim() == 3
    if flat:
        if not q_heads or not kv_heads:
            raise ValueError("three-dimensional operands need the numbers of heads")
        q, k, v = _split(q, q_heads), _split(k, kv_heads), _split(v, kv_heads)
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    present = (k, v)
    factor = scale or 1 / math.sqrt(q.shape[-1])
    shared = q.shape[1] // k.shape[1]
    hidden = _hidden(q, k, past_k, valid, causal, left, right)
    if mask is None and hidden is None and not softcap and precision is None and scores is None:
        y = F.scaled_dot_product_attention(q, k, v, scale=factor, enable_gqa=shared > 1)
        return (_join(y) if flat else y, *present)
    if shared > 1:
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    root = math.sqrt(factor)
    stages = [torch.matmul(q * root, (k * root).transpose(-1, -2))]
    stages.append(softcap * torch.tanh(stages[0] / softcap) if softcap else stages[0])
    stages.append(_masked(stages[1], mask, hidden))
    wide = stages[2].to(torch_dtype(precision)) if precision else stages[2]
    nothing = (wide == -torch.inf).all(-1, keepdim=True)
    odds = torch.where(nothing, torch.zeros_like(wide), torch.softmax(wide, -1)).to(q.dtype)
    stages.append(odds)
    y = torch.matmul(odds, v)
    results = (_join(y) if flat else y, *present)
    return results if scores is None else (*results, stages[scores])


def _split(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * head] to [batch, heads, length, head]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    """The inverse of ``_split``."""
    return x.transpose(1, 2).flatten(2)


def _hidden(
    q: Tensor,
    k: Tensor,
    past_k: Tensor | None,
    valid: Tensor | None,
    causal: bool,
    left: int,
    right: int,
) -> Tensor | None:
    """Which keys each query may not see, [batch or 1, 1, queries, keys]; None if it sees all."""
    if not causal and left < 0 and right < 0 and valid is None:
        return None
    queries, keys = q.shape[2], k.shape[2]
    key = torch.arange(keys, device=q.device)
    place = torch.arange(queries, device=q.device).reshape(1, 1, queries, 1)
    hidden = torch.zeros((1, 1, queries, keys), dtype=torch.bool, device=q.device)
    if past_k is not None:
        place = place + past_k.shape[2]
    elif valid is not None:
        place = place + (valid.reshape(-1, 1, 1, 1) - queries)
    if causal:
        hidden = hidden | (key > place)
    if left >= 0:
        hidden = hidden | (key < place - left)
    if right >= 0:
        hidden = hidden | (key > place + right)
    if valid is not None:
        hidden = hidden | (key >= valid.reshape(-1, 1, 1, 1))
    return hidden


def _masked(scores: Tensor, mask: Tensor | None, hidden: Tensor | None) -> Tensor:
    """Scores with the mask added and -inf where a key is hidden."""
    if mask is not None:
        missing = scores.shape[-1] - mask.shape[-1] if mask.dim() and mask.shape[-1] > 1 else 0
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        if missing:
            mask = F.pad(mask, [0, missing], value=-torch.inf)
        scores = scores + mask
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


@operator("aten.scaled_dot_product_attention")
def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool, scale: float
) -> Tensor:
    """torch's fused attention over [batch, heads, length, head]."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
