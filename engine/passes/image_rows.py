"""Sequences as images of one row, for which there are kernels.

    x [n, c, t] ─> conv ─> relu ─> conv       x ─> unsqueeze ─> conv ─> relu ─> conv ─> squeeze
                                                   [n, c, 1, t]

oneDNN's convolutions keep their weights packed and their data in channels_last; through torch, a
convolution over one axis orders both anew in each run. Operators behind a convolution that compute
the same on images take part, so that a network changes its layout where it begins and ends.
"""

import dataclasses

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.kinds import OPS
from braid.engine.passes.body import Weights, fresh
from braid.engine.passes.matching import Upstream, rewrite

_ROW = 2  # the axis that is inserted

_SQUEEZE, _UNSQUEEZE = "braid.squeeze", "braid.unsqueeze"

_WINDOWS = {
    "aten.convolution": {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0},
    "braid.max_pool": {"kernel": 1, "stride": 1, "dilation": 1},
    "braid.avg_pool": {"kernel": 1, "stride": 1, "dilation": 1},
}
"""Kinds that slide windows: attributes of one entry an axis, and what is in it for the row."""

_SUMS = frozenset(
    {"aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum", "braid.prelu"}
)


def sequences_to_images(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Give convolutions over one axis a second one of extent 1, and what follows them as well.

    The values keep their names and shapes outside.
    """
    return rewrite(graph, weights, _convolution, _follower)


def _convolution(op: Operator, upstream: Upstream) -> Operator | None:
    weight = upstream.weights.get(op.inputs[1]) if op.kind == "aten.convolution" else None
    if weight is None or weight.dim() != 3 or not upstream.is_top:
        return None
    name = fresh(f"{op.inputs[1]}[image]", upstream.weights)
    upstream.weights[name] = weight.unsqueeze(_ROW)
    image = _image(op.inputs[0], upstream)
    return _on_images(op, (image, name, *op.inputs[2:]), upstream)


def _follower(op: Operator, upstream: Upstream) -> Operator | None:
    """An operator that reads an image by its row, on the image."""
    if not any(_behind_row(value, upstream) for value in op.inputs) or not _fits(op, upstream):
        return None
    inputs = []
    for value in op.inputs:
        constant = upstream.weights.get(value)
        if constant is None:
            inputs.append(_image(value, upstream))
        elif op.kind in _SUMS and constant.dim() > 1:
            name = fresh(f"{value}[image]", upstream.weights)
            upstream.weights[name] = constant.unsqueeze(-2)
            inputs.append(name)
        else:
            inputs.append(value)
    return _on_images(op, tuple(inputs), upstream)


def _fits(op: Operator, upstream: Upstream) -> bool:
    """Whether the operator computes the same on images; all that moves has three axes."""
    moving = [value for value in op.inputs if value not in upstream.weights]
    has_one = len(op.outputs) == 1 or op.kind == "braid.split"
    if op.host or op.branches or not has_one or not all(op.inputs):
        return False
    if any(upstream.ranks.get(value) != 3 for value in (*moving, *op.outputs)):
        return False
    match op.kind:
        case "aten.cat":
            return op.attributes.get("dim") in (1, -2) and len(moving) == len(op.inputs)
        case "braid.max_pool" | "braid.avg_pool":
            return isinstance(op.attributes.get("pads"), list)
        case "aten.batch_norm" | "braid.instance_norm" | "braid.group_norm":
            return len(moving) == 1
        case "braid.split":
            return op.attributes.get("axis") in (1, -2)
        case "braid.pad":
            return op.attributes.get("axes") in ([2], [-1]) and len(op.inputs) == 1
    unary = op.kind in OPS and OPS[op.kind].pointwise and len(op.inputs) == 1
    return unary or op.kind in _SUMS


def _on_images(op: Operator, inputs: tuple[str, ...], upstream: Upstream) -> Operator:
    """Put the operator on images; returns what gives its first output without the row."""
    attributes = dict(op.attributes)
    for name, neutral in _WINDOWS.get(op.kind, {}).items():
        entries = attributes.get(name)
        if isinstance(entries, list) and entries:
            attributes[name] = [neutral, *entries]
    match attributes.get("pads"):
        case [before, after] if op.kind in _WINDOWS:
            attributes["pads"] = [0, before, 0, after]
    if op.kind == "aten.cat":
        attributes["dim"] = 1
    if op.kind == "braid.split":
        attributes["axis"] = 1
    if op.kind == "braid.pad":
        attributes["axes"] = [3]
    images = tuple(f"{output}[image]" for output in op.outputs)
    upstream.put(dataclasses.replace(op, inputs=inputs, outputs=images, attributes=attributes))
    rows = [
        _view(f"{op.name}[row{number or ''}]", _SQUEEZE, image, output)
        for number, (image, output) in enumerate(zip(images, op.outputs, strict=True))
    ]
    for row in rows[1:]:
        upstream.put(row)
    return rows[0]


def _image(value: str, upstream: Upstream) -> str:
    image = _behind_row(value, upstream) or f"{value}[image]"
    if image not in upstream.makers:
        upstream.put(_view(image, _UNSQUEEZE, value, image))
    return image


def _behind_row(value: str, upstream: Upstream) -> str | None:
    """The image whose only row this value is."""
    maker = upstream.makers.get(value)
    is_row = maker is not None and maker.kind == _SQUEEZE and maker.attributes == {"axes": [_ROW]}
    return maker.inputs[0] if maker is not None and is_row else None


def _view(name: str, kind: str, source: str, result: str) -> Operator:
    axes: list[Literal] = [_ROW]
    return Operator(name, kind, (source,), (result,), {"axes": axes})
