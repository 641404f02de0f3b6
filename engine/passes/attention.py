"""Attention over heads as one unit, whatever operators an exporter writes it in.

    q ─> views, times a number ─┐
    k ─> views, times a number ─┴─> matmul ─> times a number, masks ─> softmax ─┐
    v ─> views ─────────────────────────────────────────────────────────────────┴─> matmul ─> views

becomes one ``braid.attention_on_views`` of what the views are of, in a static graph. A mask is
added to the scores, or chooses between them and a number. Where a view cannot be told by strides,
e.g. a reshape that copies, the unit begins behind it. Zeros in place of NaN, which torch's exporter
writes behind the softmax for queries that see no key, become part of the unit, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.families.attention import (
    ADDED,
    ATTENTION,
    HIDDEN,
    MOST_MASKS,
    ROTATE,
    SHOWN,
    AttentionOptions,
    ViewedAttention,
)
from braid.engine.ops.kinds import EPILOGUE, call
from braid.engine.passes.body import Weights, scalar
from braid.engine.passes.matching import Upstream, rewrite_static

RESHAPES = frozenset({"braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze"})
"""Kinds that keep the order of elements."""

_VIEWS = RESHAPES | {"aten.permute", "aten.select", "braid.slice", "braid.split", "braid.expand"}
_DENSE = frozenset({"aten.linear", "braid.linear_add", "aten.layer_norm", "braid.rms_norm", ROTATE})
"""Kinds whose results of four axes lie in the order of their shape."""

FLOATS = frozenset({"FP32", "BF16", "FP16"})
_WIDEST = "FP32"
_HIDES = -1e30  # a score of this or less has odds of 0 beside any that is not hidden


def fuse_attention(graph: OpGraph, constants: Weights) -> OpGraph:
    """Each product of a softmax, and the views behind it, where nothing else reads the scores."""
    rules = (_transposed, _attention, _standard, _followed)
    return rewrite_static(graph, constants, *(partial(rule, graph) for rule in rules))


@dataclass(frozen=True, slots=True)
class _Mask:
    """A mask of the scores, and the views between where it applies and the softmax."""

    kind: str
    value: str
    number: float
    shape: Sequence[int]  # of the scores there
    views: tuple[Operator, ...] = ()  # the last one first


@dataclass(frozen=True, slots=True)
class _Scores:
    product: Operator
    scale: float = 1.0
    masks: tuple[_Mask, ...] = ()  # in order


@dataclass(frozen=True, slots=True)
class _View:
    """A value as a view of an earlier one, times a number."""

    source: str
    tensor: Tensor  # on meta
    factor: float = 1.0
    shared: int = 1  # how often each of its heads, axis 1, stands in the value

    def seen(self, tensor: Tensor) -> _View | None:
        """The same, seen otherwise; None for a copy."""
        return dataclasses.replace(self, tensor=tensor) if shares(self.tensor, tensor) else None

    def through(self, op: Operator, number: int) -> _View | None:
        """What a view makes of this one; None for a copy, unless it only repeats heads."""
        if self.shared > 1 and (
            op.kind != "aten.permute" or op.attributes.get("dims") != [0, 1, 3, 2]
        ):
            return None
        result = call(op, [self.tensor])[number]
        if (view := self.seen(result)) is not None or op.kind not in RESHAPES:
            return view
        x = self.tensor
        if (
            x.dim() != 5
            or x.stride(2)
            or result.shape != (x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])
        ):
            return None
        return dataclasses.replace(self, tensor=x[:, :, 0], shared=x.shape[2])


def _attention(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    if op.kind != "aten.matmul" or op.attributes or graph.spec(op.outputs[0]).dtype not in FLOATS:
        return None
    softmax, zero_hidden = _softmax(op.inputs[0], graph, upstream)
    scores = None if softmax is None else next(_scores(softmax.inputs[0], graph, upstream), None)
    if softmax is None or scores is None:
        return None
    shape, product = (_extents(graph, unit.outputs[0]) for unit in (softmax, scores.product))
    if product[-2:] != shape[-2:] or shape[:-2] != _extents(graph, op.outputs[0])[:-2]:
        return None
    q, k = (traced(name, graph, upstream) for name in scores.product.inputs)
    v = traced(op.inputs[1], graph, upstream, scales=False)
    if q.tensor.dim() < 2 or k.tensor.dim() < 2 or v.tensor.dim() < 2:
        return None
    k = dataclasses.replace(k, tensor=k.tensor.transpose(-1, -2))  # it was transposed
    unit = _unit(graph, op, (q, k, v), shape[:-2], scores, upstream)
    if unit is None or not zero_hidden:
        return unit
    return dataclasses.replace(unit, attributes={**unit.attributes, "zero_hidden": True})


def _standard(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    """ONNX's own operator, where it has no more than a mask."""
    if op.kind != "braid.attention" or any(op.inputs[4:]):
        return None
    if any(upstream.reads[name] for name in op.outputs[1:]):
        return None
    how = AttentionOptions(**op.attributes)  # type: ignore[arg-type]
    is_plain = how.left < 0 and how.right < 0 and not how.softcap and how.scores is None
    if not is_plain or how.precision not in (None, _WIDEST):
        return None
    is_flat = len(_extents(graph, op.inputs[0])) == 3
    views = []
    heads = how.q_heads, how.kv_heads, how.kv_heads
    for name, count, scales in zip(op.inputs, heads, (True, True, False), strict=False):
        view = traced(name, graph, upstream, scales=scales)
        if is_flat:
            rows = view.tensor.shape[:2]
            view_in_heads = view.tensor.reshape(*rows, count or 1, -1).transpose(1, 2)
            seen = view.seen(view_in_heads)
            if seen is None:
                return None
            view = seen
        views.append(view)
    q, k, v = views
    shared = q.tensor.shape[1] // max(1, k.tensor.shape[1])
    if shared > 1:
        if any(view.shared > 1 for view in views):
            return None
        k, v = (dataclasses.replace(view, shared=shared) for view in (k, v))
    shape = (*q.tensor.shape[:3], k.tensor.shape[2])
    masks: tuple[_Mask, ...] = ()
    if mask := (*op.inputs, "")[3]:
        kind = SHOWN if graph.spec(mask).dtype == "BOOL" else ADDED
        if kind == ADDED and graph.spec(mask).dtype != graph.spec(op.outputs[0]).dtype:
            return None
        masks = (_Mask(kind, mask, -math.inf, shape),)
    scores = _Scores(op, how.scale or 1 / math.sqrt(q.tensor.shape[-1]), masks)
    unit = _unit(graph, op, (q, k, v), shape[:2], scores, upstream)
    if unit is None:
        return None
    changed: dict[str, Any] = {"zero_hidden": True}
    if how.causal:
        changed["causal"] = True
    if is_flat:
        width = v.tensor.shape[-1]
        changed["out"] = [shape[2] * shape[1] * width, width, shape[1] * width]
        changed["shape"] = [shape[0], shape[2], shape[1] * width]
    return dataclasses.replace(unit, attributes={**unit.attributes, **changed})


def _unit(
    graph: OpGraph,
    op: Operator,
    qkv: tuple[_View, _View, _View],
    batch: tuple[int, ...],
    scores: _Scores,
    upstream: Upstream,
) -> Operator | None:
    """The unit in place of ``op``; None if strides cannot tell an operand or a mask."""
    q, k, v = qkv
    queries, keys, width = q.tensor.shape[-2], k.tensor.shape[-2], v.tensor.shape[-1]
    shape, result = (*batch, queries, keys), (*batch, queries, width)
    if q.shared > 1 or k.shared != v.shared or (k.shared > 1 and len(batch) < 2):
        return None
    if (
        len(batch) > 2
        or 0 in (*shape, *result, q.tensor.shape[-1])
        or len(scores.masks) > MOST_MASKS
    ):
        return None
    batches, heads = (*batch, 1, 1)[:2]
    try:
        views = [
            view.tensor.expand(*_fewer(batch, view.shared), *view.tensor.shape[-2:]) for view in qkv
        ]
    except RuntimeError:
        return None
    masks = [_masked(mask, shape, graph, upstream) for mask in scores.masks]
    if None in masks:
        return None
    limit = _HIDES if len(masks) == 1 else -math.inf
    causal = [m for m in scores.masks if _is_causal(m, shape, upstream.weights, limit)]
    kept = [m for m, mask in zip(masks, scores.masks, strict=True) if m and mask not in causal]
    q_view, k_view, v_view = map(strides_of, views)
    how = ViewedAttention(
        batches,
        heads,
        queries,
        keys,
        width=q.tensor.shape[-1],
        value_width=width,
        q=q_view,
        k=k_view,
        v=v_view,
        out=[heads * queries * width, queries * width, width],
        shape=[*result],
        scale=scores.scale * q.factor * k.factor,
        masks=[view for _, view in kept],
        causal=bool(causal),
        shared=k.shared,
    )
    inputs = (q.source, k.source, v.source, *(source for source, _ in kept))
    return Operator(op.name, ATTENTION, inputs, op.outputs[:1], dataclasses.asdict(how))


def _softmax(value: str, graph: OpGraph, upstream: Upstream) -> tuple[Operator | None, bool]:
    """The softmax that makes ``value``, and whether its NaN become 0 on the way."""
    chosen, readers = upstream.only_read(value, "aten.where"), 1
    if chosen is not None and not chosen.attributes:
        condition, zero, value = chosen.inputs
        isnan = upstream.only_read(condition, "aten.isnan")
        if isnan is None or isnan.inputs != (value,) or scalar(upstream.weights, zero) != 0:
            return None, False
        readers = 2
    maker = upstream.makers.get(value)
    if maker is None or maker.kind != "aten.softmax" or upstream.reads[value] != readers:
        return None, False
    last = len(_extents(graph, value)) - 1
    is_last = maker.attributes.get("dim") in (-1, last) and EPILOGUE not in maker.attributes
    return (maker if is_last else None), readers == 2


def _scores(value: str, graph: OpGraph, upstream: Upstream) -> Iterator[_Scores]:
    """Ways to read a value, which one operator reads, as a product that is scaled and masked."""
    op = upstream.only_read(value)
    if op is None or len(op.outputs) != 1:
        return
    steps = op.attributes.get(EPILOGUE)
    if op.kind == "aten.matmul":
        factor = factor_of(steps)
        if factor is not None:
            yield _Scores(op, factor)
        return
    if steps:
        return
    if op.kind in RESHAPES:
        for scores in _scores(op.inputs[0], graph, upstream):
            masks = (dataclasses.replace(m, views=(op, *m.views)) for m in scores.masks)
            yield dataclasses.replace(scores, masks=tuple(masks))
        return
    if (scaled := _scaled(op, graph, upstream.weights)) is not None:
        for scores in _scores(scaled[0], graph, upstream):
            if not scores.masks or scaled[1] == 1:
                yield dataclasses.replace(scores, scale=scores.scale * scaled[1])
        return
    for source, mask in _masks(op, graph, upstream.weights):
        for scores in _scores(source, graph, upstream):
            yield dataclasses.replace(scores, masks=(*scores.masks, mask))


def _masks(op: Operator, graph: OpGraph, weights: Weights) -> Iterator[tuple[str, _Mask]]:
    """Scores that ``op`` masks, and the mask; of a sum, either operand may be the mask."""
    spec = graph.spec(op.outputs[0])
    shape = _extents(graph, op.outputs[0])
    if op.kind == "aten.add" and not op.attributes:
        for source, mask in (op.inputs, op.inputs[::-1]):
            if graph.spec(source) == spec and graph.spec(mask).dtype == spec.dtype:
                yield source, _Mask(ADDED, mask, 0.0, shape)
    elif op.kind == "aten.where" and not op.attributes:
        condition, yes, no = op.inputs
        for kind, source, other in ((SHOWN, yes, no), (HIDDEN, no, yes)):
            number = scalar(weights, other)
            if number is not None and graph.spec(source) == spec:
                yield source, _Mask(kind, condition, number, shape)


def _scaled(op: Operator, graph: OpGraph, weights: Weights) -> tuple[str, float] | None:
    """The operand that ``op`` multiplies by a number, and that number; 1 by a cast to its type."""
    if not op.inputs or graph.spec(op.inputs[0]).dtype not in FLOATS:
        return None
    spec = graph.spec(op.outputs[0])
    if op.kind == "braid.cast" and EPILOGUE not in op.attributes:
        return (op.inputs[0], 1.0) if graph.spec(op.inputs[0]) == spec else None
    if op.kind == "braid.affine" and op.attributes.get("shift") == 0:
        factor = op.attributes["scale"]
        is_bare = EPILOGUE not in op.attributes and isinstance(factor, float)
        return (op.inputs[0], factor) if is_bare else None  # type: ignore[return-value]
    if op.kind not in ("aten.mul", "aten.div") or op.attributes:
        return None
    for source, other in (op.inputs, op.inputs[::-1]):
        number = scalar(weights, other)
        if number is not None and graph.spec(source) == spec:
            if op.kind == "aten.mul":
                return source, number
            return (source, 1 / number) if number and source == op.inputs[0] else None
    return None


def factor_of(steps: object) -> float | None:
    """The number by which an epilogue multiplies; None if it does anything else."""
    factor = 1.0
    for step in steps if isinstance(steps, list) else []:
        match step:
            case ["braid.affine", "scale", float(scale), "shift", 0.0]:
                factor *= scale
            case _:
                return None
    return factor


def traced(value: str, graph: OpGraph, upstream: Upstream, *, scales: bool = True) -> _View:
    """A value as a view of the farthest value before it of which strides tell the view."""
    path: list[tuple[Operator, str]] = []
    source = value
    while (op := upstream.makers.get(source)) is not None:
        scaled = _scaled(op, graph, upstream.weights) if scales or op.kind == "braid.cast" else None
        is_view = op.kind in _VIEWS and len(op.inputs) == 1 and EPILOGUE not in op.attributes
        if not is_view and scaled is None:
            break
        path.append((op, source))
        source = op.inputs[0] if scaled is None else scaled[0]
    for length in range(len(path), 0, -1):
        op, _ = path[length - 1]
        scaled = None if op.kind in _VIEWS else _scaled(op, graph, upstream.weights)
        begin = op.inputs[0] if scaled is None else scaled[0]
        maker = upstream.makers.get(begin)
        if maker is not None and maker.kind not in _DENSE and len(_extents(graph, begin)) == 4:
            continue  # it may lie in another order
        if (view := _along(path[:length], begin, graph, upstream.weights)) is not None:
            return view
    return _View(value, _meta(graph, value))


def _along(
    path: Sequence[tuple[Operator, str]], begin: str, graph: OpGraph, weights: Weights
) -> _View | None:
    """What a path of operators, the last one first, makes of a dense value; None for a copy."""
    view = _View(begin, _meta(graph, begin))
    for op, result in reversed(path):
        if op.kind in _VIEWS:
            seen = view.through(op, op.outputs.index(result))
            if seen is None:
                return None
            view = seen
        else:
            scaled = _scaled(op, graph, weights)
            assert scaled is not None
            view = dataclasses.replace(view, factor=view.factor * scaled[1])
    return view


def _fewer(batch: tuple[int, ...], shared: int) -> tuple[int, ...]:
    """Batches and heads, each of which is read ``shared`` times."""
    return batch if shared == 1 else (batch[0], batch[1] // shared)


def strides_of(tensor: Tensor) -> list[int]:
    *outer, row, column = tensor.stride()
    batch, head = {0: [0, 0], 1: [*outer, 0], 2: outer}[len(outer)]
    return [int(tensor.storage_offset()), batch, head, row, column]


def _masked(
    mask: _Mask, shape: Sequence[int], graph: OpGraph, upstream: Upstream
) -> tuple[str, list[object]] | None:
    """What a mask is a view of, and how it applies: its kind, its number, its view."""
    view = traced(mask.value, graph, upstream, scales=False)
    try:
        tensor = view.tensor.expand(tuple(mask.shape))
    except RuntimeError:
        return None
    for op in reversed(mask.views):
        (seen,) = call(op, [tensor])
        if not shares(tensor, seen):
            return None
        tensor = seen
    if tuple(tensor.shape) != tuple(shape):
        return None
    return view.source, [mask.kind, mask.number, *strides_of(tensor)]


def _is_causal(mask: _Mask, shape: Sequence[int], weights: Weights, limit: float) -> bool:
    """Whether a constant mask hides the keys behind each query's position, and nothing else.

    ``limit`` is the largest number that hides. Beside other masks only -inf will do: a query whose
    own keys all have the least number sees hidden ones that have it, too.
    """
    content = weights.get(mask.value)
    if content is None or mask.views or content.dim() < 2 or content.shape[-2:] != shape[-2:]:
        return False
    if math.prod(content.shape[:-2]) != 1:
        return False
    content = content.reshape(content.shape[-2:])
    seen = torch.ones(content.shape, dtype=torch.bool).tril()
    if mask.kind == ADDED:
        return bool(((content == 0) == seen).all() and (content[~seen] <= limit).all())
    return mask.number <= limit and torch.equal(content, seen if mask.kind == SHOWN else ~seen)


def _transposed(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    """A transposition without the reshapes around it that only join the axes before.

    torch's exporter writes keys so, and repeated heads could not be told behind such a reshape.
    """
    swapped = upstream.makers.get(op.inputs[0]) if op.kind in RESHAPES else None
    if swapped is None or swapped.kind != "aten.permute" or EPILOGUE in op.attributes:
        return None
    if swapped.attributes != {"dims": [0, 2, 1]}:
        return None
    joined = upstream.makers.get(swapped.inputs[0])
    if joined is None or joined.kind not in RESHAPES or EPILOGUE in joined.attributes:
        return None
    before, middle, after = (
        _extents(graph, name) for name in (joined.inputs[0], *joined.outputs, *op.outputs)
    )
    if before[-2:] != middle[1:] or after != (*before[:-2], *middle[:0:-1]):
        return None
    last = len(before) - 1
    dims = [*range(last - 1), last, last - 1]
    return Operator(op.name, "aten.permute", joined.inputs, op.outputs, {"dims": dims})


def _followed(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    """Attention with the views of its result, in the order that those give."""
    if op.kind not in (*RESHAPES, "aten.permute") or op.attributes.get(EPILOGUE):
        return None
    maker = upstream.only_read(op.inputs[0], ATTENTION)
    if maker is None:
        return None
    shape = _extents(graph, op.outputs[0])
    changed: Mapping[str, object] = {"shape": [*shape]}
    if op.kind == "aten.permute":
        before = _extents(graph, op.inputs[0])
        given = op.attributes.get("dims")
        dims = given if isinstance(given, list) else [*range(len(before))][::-1]
        out = _permuted_out(maker, before, [dim for dim in dims if isinstance(dim, int)])
        if out is None:
            return None
        changed = {**changed, "out": out}
    attributes = {**maker.attributes, **changed}
    return dataclasses.replace(maker, outputs=op.outputs, attributes=attributes)  # type: ignore[arg-type]


def _permuted_out(maker: Operator, before: Sequence[int], dims: Sequence[int]) -> list[int] | None:
    """Distances of batches, heads and rows where the result, of shape ``before``, is permuted."""
    how = ViewedAttention(**maker.attributes)  # type: ignore[arg-type]
    extents = how.batches, how.heads, how.queries, how.value_width
    if [*how.out] != [math.prod(extents[1:]), math.prod(extents[2:]), extents[3]]:
        return None  # it is permuted already
    after = torch.empty([before[dim] for dim in dims], device="meta")
    back = sorted(range(len(dims)), key=lambda axis: dims[axis] % len(dims))
    try:
        strides = after.permute(back).view(extents).stride()
    except RuntimeError:
        return None
    return [*strides[:3]] if strides[3] == 1 else None


def _extents(graph: OpGraph, value: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in graph.spec(value).shape)


def _meta(graph: OpGraph, value: str) -> Tensor:
    dtype = torch_dtype(graph.spec(value).dtype)
    return torch.empty(_extents(graph, value), dtype=dtype, device="meta")


def shares(tensor: Tensor, view: Tensor) -> bool:
    return bool(tensor.untyped_storage()._cdata == view.untyped_storage()._cdata)
