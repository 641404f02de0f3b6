"""Passes that remove operators: no-ops, repeats of what is computed already, unread results."""

import dataclasses
import hashlib
import json

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.passes.body import (
    Body,
    Weights,
    everywhere,
    live,
    rename_reads,
    scalar,
    with_constants,
)

_MAX_COMPARED_BYTES = 1 << 20  # larger constants are not compared for equality


def drop_no_ops(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """An operator from an input straight to an output stays: a graph has at least one operator."""
    return everywhere(_drop_no_ops, graph, weights)


def _drop_no_ops(body: Body, weights: dict[str, Tensor]) -> Body:
    computed = {out for op in body.operators for out in op.outputs}
    names: dict[str, str] = {}
    kept = []
    for op in (rename_reads(op, names) for op in body.operators):
        source = _passes_on(op, weights)
        bare = source not in computed and op.outputs[0] in body.results
        if source is None or (bare and body.top):
            kept.append(op)
        else:
            names[op.outputs[0]] = source  # renamed already, so chains resolve
    return dataclasses.replace(body, operators=tuple(kept)).renamed(names)


def _passes_on(op: Operator, weights: Weights) -> str | None:
    """Input that equals the output of ``op``; None if there is none."""
    if op.host or op.branches or not op.inputs or op.attributes.get("epilogue"):
        return None
    first, *rest = op.inputs
    dims = op.attributes.get("dims")
    match op.kind:
        case "braid.identity":
            return first
        case "aten.cat" if not rest:
            return first
        case "aten.permute" if isinstance(dims, list) and dims == list(range(len(dims))):
            return first
        case "aten.mul" | "aten.div" if _is_scalar(weights, rest[0], 1.0):
            return first
        case "aten.add" | "aten.sub" if _is_scalar(weights, rest[0], 0.0):
            return first
        case "aten.mul" if _is_scalar(weights, first, 1.0):
            return rest[0]
        case "aten.add" if _is_scalar(weights, first, 0.0):
            return rest[0]
    return None


def _is_scalar(weights: Weights, name: str, value: float) -> bool:
    """True for a constant without axes: it cannot widen what it is combined with."""
    return scalar(weights, name) == value and weights[name].dim() == 0


def merge_duplicates(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Keep one of several operators that compute the same from the same values."""
    return everywhere(_merge_duplicates, graph, weights)


def _merge_duplicates(body: Body, weights: dict[str, Tensor]) -> Body:
    names = _equal_constants(weights)
    first: dict[str, Operator] = {}
    kept = []
    for op in (rename_reads(op, names) for op in body.operators):
        twin = op if op.branches else first.setdefault(_identity(op), op)
        if twin is op:
            kept.append(op)
        else:
            names.update(zip(op.outputs, twin.outputs, strict=True))
    return dataclasses.replace(body, operators=tuple(kept)).renamed(names)


def _identity(op: Operator) -> str:
    what = (op.kind, op.inputs, dict(op.attributes), dict(op.host), len(op.outputs))
    return json.dumps(what, sort_keys=True)


def _equal_constants(weights: Weights) -> dict[str, str]:
    """Name of a small constant -> name of an earlier constant that equals it."""
    first: dict[tuple[object, ...], str] = {}
    names = {}
    for name, tensor in weights.items():
        if tensor.nbytes > _MAX_COMPARED_BYTES:
            continue
        content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        key = (tensor.dtype, tensor.shape, hashlib.sha256(content).digest())
        earlier = first.setdefault(key, name)
        if earlier != name:
            names[name] = earlier
    return names


def drop_dead(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    return with_constants(*everywhere(_drop_dead, graph, weights))


def _drop_dead(body: Body, weights: dict[str, Tensor]) -> Body:
    return dataclasses.replace(body, operators=live(body.operators, body.results))
