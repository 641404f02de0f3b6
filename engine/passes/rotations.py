"""Rotary embeddings of positions as one unit, as exporters write those that turn halves of heads.

    x ─> views ─┬─> times cos ─────────────────────────────┬─> add
                └─> halves ─> cat(-second, first) ─> times sin

becomes one ``braid.rotate_heads`` of what the views are of, in a static graph. So does one of the
first numbers of each head, if the others are joined to it again.
"""

from dataclasses import replace
from functools import partial

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.families.attention import ROTATE, RotatedHeads
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.attention import FLOATS, factor_of, strides_of, traced
from braid.engine.passes.body import Weights
from braid.engine.passes.matching import Captures, Op, Upstream, match_all, rewrite_static, value

_X = value("x")
_SECOND = Op("aten.neg", Op("braid.slice", _X, name="second"))
_HALVES = Op("aten.cat", _SECOND, Op("braid.slice", _X, name="first"), name="joined")
_TURNED = Op("aten.mul", _X, value("cos")), Op("aten.mul", _HALVES, value("sin"))


def fuse_rotations(graph: OpGraph, constants: Weights) -> OpGraph:
    """Fuse each such sum. Only where nothing else reads the values in between."""
    return rewrite_static(graph, constants, partial(_rotated, graph), partial(_in_part, graph))


def _rotated(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    factor = factor_of(op.attributes.get(EPILOGUE))
    if op.kind != "aten.add" or set(op.attributes) - {EPILOGUE} or factor is None:
        return None
    for operands in (op.inputs, op.inputs[::-1]):
        for found in match_all(_TURNED, operands, upstream, {"": op.outputs[0]}):
            x, cos, sin = (found[name] for name in ("x", "cos", "sin"))
            if _are_halves(graph, found, upstream) and _fits(graph, x, cos, sin):
                return _unit(graph, op, (x, cos, sin), factor, upstream)
    return None


def _in_part(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    """Heads of which the first numbers are rotated, and to which the others are joined again."""
    rotated = upstream.only_read(op.inputs[0], ROTATE) if _joins_two(op) else None
    if rotated is None:
        return None
    how = RotatedHeads(**rotated.attributes)  # type: ignore[arg-type]
    (offset, *strides), (*outer, width) = how.view, how.shape
    rest = traced(op.inputs[1], graph, upstream, scales=False)
    follows = rest.source == rotated.inputs[0] and rest.tensor.shape[:3] == tuple(outer)
    if (
        how.scale != 1
        or not follows
        or strides_of(rest.tensor) != [offset + width, *strides]
        or rest.shared > 1
    ):
        return None
    shape: list[Literal] = [*outer, width + rest.tensor.shape[3]]
    attributes = {**rotated.attributes, "shape": shape}
    return replace(rotated, outputs=op.outputs, attributes=attributes)


def _unit(
    graph: OpGraph, op: Operator, operands: tuple[str, str, str], scale: float, upstream: Upstream
) -> Operator | None:
    """The unit in the place of ``op``; None if strides cannot tell where its heads lie."""
    x, cos, sin = operands
    view = traced(x, graph, upstream, scales=False)
    if view.shared > 1 or view.tensor.stride(3) != 1:
        return None
    shape: list[Literal] = [int(extent) for extent in graph.spec(x).shape]
    places: list[Literal] = [*strides_of(view.tensor)]
    attributes: dict[str, Literal] = {"shape": shape, "view": places, "scale": scale}
    return Operator(op.name, ROTATE, (view.source, cos, sin), op.outputs, attributes)


def _joins_two(op: Operator) -> bool:
    is_last = op.attributes.get("dim") in (-1, 3) and len(op.attributes) == 1
    return op.kind == "aten.cat" and is_last and len(op.inputs) == 2


def _are_halves(graph: OpGraph, found: Captures, upstream: Upstream) -> bool:
    """Whether what is joined is the second half of the last axis of x, negated, and the first."""
    shape, joined = graph.spec(found["x"]).shape, upstream.makers[found["joined"]]
    if not _joins_two(joined) or len(shape) != 4 or int(shape[3]) % 2:
        return False
    first, second = (upstream.makers[found[name]] for name in ("first", "second"))
    half = int(shape[3]) // 2
    return _takes(first, 0, half, graph) and _takes(second, half, half, graph)


def _takes(op: Operator, start: int, count: int, graph: OpGraph) -> bool:
    """Whether an operator takes ``count`` numbers of the last of four axes, from ``start`` on."""
    if op.kind != "braid.slice" or EPILOGUE in op.attributes:
        return False
    *outer, width = graph.spec(op.inputs[0]).shape
    starts, axes = (op.attributes.get(name) for name in ("starts", "axes"))
    is_dense = op.attributes.get("steps", [1]) == [1] and axes in ([3], [-1])
    begins = starts in ([start], [start - int(width)])
    return is_dense and begins and graph.spec(op.outputs[0]).shape == (*outer, count)


def _fits(graph: OpGraph, x: str, cos: str, sin: str) -> bool:
    spec, angles = graph.spec(x), graph.spec(cos)
    batch, _, length, width = spec.shape
    same = graph.spec(sin) == angles and angles.dtype == spec.dtype and spec.dtype in FLOATS
    return same and angles.shape in ((1, 1, length, width), (batch, 1, length, width))
