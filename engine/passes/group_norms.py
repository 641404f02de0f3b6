"""Normalisation of groups of channels as one unit, as exporters write it below opset 21.

    x ─> reshape [n, groups, -1] ─> instance norm ─> reshape like x ─> times w, plus b by channel

becomes ``braid.group_norm``, in a static graph.
"""

import dataclasses
from functools import partial

from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.attention import RESHAPES
from braid.engine.passes.body import Weights
from braid.engine.passes.matching import Upstream, rewrite_static

_KIND = "braid.group_norm"


def fuse_group_norms(graph: OpGraph, constants: Weights) -> OpGraph:
    """Constants by channel behind it, too, where nothing else reads the values in between."""
    return rewrite_static(graph, constants, partial(_grouped, graph), partial(_affine, graph))


def _grouped(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    norm = upstream.only_read(op.inputs[0], "braid.instance_norm") if op.kind in RESHAPES else None
    if norm is None or EPILOGUE in norm.attributes:
        return None
    apart = upstream.only_read(norm.inputs[0])
    if apart is None or apart.kind not in RESHAPES or EPILOGUE in apart.attributes:
        return None
    source, spec = apart.inputs[0], graph.spec(op.outputs[0])
    rows, groups, *rest = graph.spec(norm.inputs[0]).shape
    fits = graph.spec(source) == spec and len(spec.shape) > 2 and len(rest) > 0
    if not fits or spec.shape[0] != rows or int(spec.shape[1]) % int(groups):
        return None
    attributes = {"groups": groups, "eps": norm.attributes["eps"]}
    inputs = (source, *norm.inputs[1:])
    return dataclasses.replace(op, kind=_KIND, inputs=inputs, attributes=attributes)


def _affine(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    """A norm whose own weights change nothing, with those of a product or a sum behind it."""
    if op.kind not in ("aten.mul", "aten.add") or set(op.attributes) - {EPILOGUE}:
        return None
    for data, other in (op.inputs, op.inputs[::-1]):
        norm = upstream.only_read(data, _KIND)
        content = upstream.weights.get(other)
        if norm is None or EPILOGUE in norm.attributes or content is None:
            continue
        x, weight, bias = norm.inputs
        is_product = op.kind == "aten.mul"
        is_free = _is_all(upstream.weights.get(bias), 0) and (
            not is_product or _is_all(upstream.weights.get(weight), 1)
        )
        spec = graph.spec(data)
        if (
            not is_free
            or spec != graph.spec(op.outputs[0])
            or spec.dtype != graph.spec(other).dtype
        ):
            continue
        if _is_by_channel(content, [int(extent) for extent in spec.shape]):
            inputs = (x, other, bias) if is_product else (x, weight, other)
            attributes = {**norm.attributes, **op.attributes}
            return dataclasses.replace(
                norm, inputs=inputs, outputs=op.outputs, attributes=attributes
            )
    return None


def _is_all(content: Tensor | None, number: float) -> bool:
    return content is not None and bool((content == number).all())


def _is_by_channel(content: Tensor, shape: list[int]) -> bool:
    padded = [1] * (len(shape) - content.dim()) + list(content.shape)
    return padded == [1, shape[1], *[1] * (len(shape) - 2)]
