"""Number of axes of values, as far as the operators alone tell."""

from __future__ import annotations

from collections.abc import Mapping

from braid.engine.ops.kinds import OPS
from braid.engine.passes.body import Body, Weights

_SAME_AS_FIRST = frozenset(
    {
        *("aten.batch_norm", "aten.linear", "aten.layer_norm", "aten.softmax", "aten.cat"),
        *("braid.max_pool", "braid.avg_pool", "braid.global_avg_pool", "braid.global_max_pool"),
        *("braid.lrn", "braid.resize", "braid.pad", "braid.pad_same", "braid.instance_norm"),
        *("braid.group_norm", "braid.slice", "braid.identity", "braid.prelu", "braid.cast"),
    }
)
_BROADCAST = frozenset({"aten.add", "aten.sub", "aten.mul", "aten.div"})


def ranks(body: Body, weights: Weights) -> Mapping[str, int]:
    """Rank of each value of ``body`` where it is certain; the others are missing."""
    found = dict(body.ranks) | {name: tensor.dim() for name, tensor in weights.items()}
    for op in body.operators:
        first = op.inputs[0] if op.inputs else ""
        rank = found.get(first)
        shape = op.attributes.get("shape")
        if op.kind == "aten.convolution":
            rank = found.get(op.inputs[1])
        elif op.kind == "braid.reshape":
            rank = len(shape) if isinstance(shape, list) else None
        elif op.kind == "braid.flatten":
            rank = 2
        elif op.kind in _BROADCAST:
            both = [found.get(name) for name in op.inputs]
            rank = None if None in both else max(r for r in both if r is not None)
        elif op.kind not in _SAME_AS_FIRST and not (op.kind in OPS and OPS[op.kind].pointwise):
            rank = None
        if rank is not None:
            found[op.outputs[0]] = rank
    return found
