"""Rotary embeddings of positions as one unit, as exporters write those that turn halves of heads.

    x [batch, length, heads, width] ─> permute ─┬─> times cos ─────────────────────────┬─> add
                                                └─> halves ─> cat(-second, first) ─> times sin

becomes one ``braid.rotate_heads`` of x, in a static graph.
"""

from __future__ import annotations

from functools import partial

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.families.attention import ROTATE
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.attention import factor_of
from braid.engine.passes.body import Weights
from braid.engine.passes.matching import Upstream, rewrite_static


def fuse_rotations(graph: OpGraph, constants: Weights) -> OpGraph:
    """Fuse each such sum. Only where nothing else reads the values in between."""
    return rewrite_static(graph, constants, partial(_rotated, graph))


def _rotated(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    factor = factor_of(op.attributes.get(EPILOGUE))
    if op.kind != "aten.add" or set(op.attributes) - {EPILOGUE} or factor is None:
        return None
    for straight, turned in (op.inputs, op.inputs[::-1]):
        one, other = (upstream.only_read(name, "aten.mul") for name in (straight, turned))
        if one is None or other is None or one.attributes or other.attributes:
            continue
        for x, cos in (one.inputs, one.inputs[::-1]):
            for halves, sin in (other.inputs, other.inputs[::-1]):
                source = _source(graph, x, halves, upstream)
                if source is not None and _fits(graph, x, cos, sin):
                    inputs, attributes = (source, cos, sin), {"scale": factor}
                    return Operator(op.name, ROTATE, inputs, op.outputs, attributes)
    return None


def _source(graph: OpGraph, x: str, halves: str, upstream: Upstream) -> str | None:
    """What ``x`` is a permutation of, if ``halves`` are those of ``x``, the second one negated."""
    permuted = upstream.makers.get(x)
    joined = upstream.only_read(halves, "aten.cat")
    if permuted is None or permuted.kind != "aten.permute" or joined is None:
        return None
    if permuted.attributes != {"dims": [0, 2, 1, 3]} or len(joined.inputs) != 2:
        return None
    if joined.attributes.get("dim") not in (-1, 3) or len(joined.attributes) != 1:
        return None
    negated = upstream.only_read(joined.inputs[0], "aten.neg")
    if negated is None or negated.attributes:
        return None
    is_turned = _is_half(graph, joined.inputs[1], x, 0, upstream)
    is_turned &= _is_half(graph, negated.inputs[0], x, 1, upstream)
    return permuted.inputs[0] if is_turned else None


def _is_half(graph: OpGraph, value: str, x: str, which: int, upstream: Upstream) -> bool:
    """Whether a value is the first half (0) or the second one (1) of the last axis of ``x``."""
    maker, width = upstream.only_read(value), int(graph.spec(x).shape[-1])
    half = width // 2
    if maker is None or maker.inputs != (x,) or EPILOGUE in maker.attributes or width % 2:
        return False
    if graph.spec(value).shape != (*graph.spec(x).shape[:-1], half):
        return False
    if maker.kind == "braid.split":
        return maker.outputs.index(value) == which and len(maker.outputs) == 2
    starts, axes = (maker.attributes.get(name) for name in ("starts", "axes"))
    if maker.kind != "braid.slice" or maker.attributes.get("steps", [1]) != [1]:
        return False
    return axes in ([3], [-1]) and starts in ([which * half], [(which - 2) * half])


def _fits(graph: OpGraph, x: str, cos: str, sin: str) -> bool:
    spec, angles = graph.spec(x), graph.spec(cos)
    batch, _, length, width = spec.shape
    same = graph.spec(sin) == angles and angles.dtype == spec.dtype
    return same and angles.shape in ((1, 1, length, width), (batch, 1, length, width))
