"""Operators in terms of others, where shapes are known: what has kernels everywhere.

    einsum of two ──> permute, reshape, matmul, reshape, permute    resize to its size ──> nothing
    depth to space, space to depth ──> reshape, permute, reshape    norm of a batch ──> mul, add
    pad by copies ──> a gather along each axis that is padded       pad of integers ──> cat
    scatter to known places ──> cat, gather                         clamp of integers ──> extremes
    product of a few ──> select, mul

A few networks have such operators. Each would need a kernel for each kind of device; one in the
interpreter takes longer than its work (docs/decisions/0017-bursts.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from braid.core.attributes import wholes
from braid.core.graph import Literal, Operator
from braid.engine.ops.families.indexing import flat_places
from braid.engine.ops.families.resize import ResizeOptions
from braid.engine.ops.families.shape import Moved, depth_to_space, source_positions, space_to_depth
from braid.engine.ops.kinds import EPILOGUE

IDENTITY = "braid.identity"
MOST_FACTORS = 4  # of a product that is spelled out
Known = Callable[[str], Tensor | None]  # None for any value but a constant


class Spelling:
    """The operators that take the place of one."""

    def __init__(self, op: Operator, meta: Sequence[Tensor], fresh: Callable[[], str]) -> None:
        self.op = op
        # Of its operands, then of its result.
        self.shapes = [tuple(tensor.shape) for tensor in meta]
        self.dtype = meta[-1].dtype  # of its result
        self.operators: list[Operator] = []
        self.constants: dict[str, Tensor] = {}
        self._fresh = fresh

    def then(self, kind: str, *inputs: str, **attributes: Literal) -> str:
        made = self._fresh()
        self.operators.append(Operator(made, kind, inputs, (made,), attributes))
        return made

    def constant(self, tensor: Tensor) -> str:
        name = self._fresh()
        self.constants[name] = tensor
        return name

    def reshaped(self, value: str, before: Sequence[int], shape: Sequence[int]) -> str:
        if tuple(before) == tuple(shape):
            return value
        return self.then("braid.reshape", value, shape=[*shape], allow_zero=True)

    def permuted(self, value: str, order: Sequence[int]) -> str:
        if [*order] == [*range(len(order))]:
            return value
        return self.then("aten.permute", value, dims=[*order])

    def ended(self, value: str) -> list[Operator]:
        """All operators; the last one, which makes ``value``, makes what the operator made."""
        name, results = self.op.name, self.op.outputs
        if not self.operators:
            return [Operator(name, IDENTITY, (value,), results, {})]
        *others, last = self.operators
        return [*others, Operator(name, last.kind, last.inputs, results, last.attributes)]


def spelled(
    op: Operator, meta: Sequence[Tensor], known: Known, fresh: Callable[[], str]
) -> tuple[list[Operator], dict[str, Tensor]] | None:
    """``op`` is of ``SPELLED``; ``meta``: operands, then result; None: the operator stays."""
    if EPILOGUE in op.attributes or len(op.outputs) != 1:
        return None
    spelling = Spelling(op, meta, fresh)
    value = SPELLED[op.kind](spelling, known)
    return None if value is None else (spelling.ended(value), spelling.constants)


def _einsum(to: Spelling, _: Known) -> str | None:
    """A product of two operands without sums of one alone: of matrices, behind all else."""
    labels = axis_names(str(to.op.attributes["equation"]), to.shapes)
    if labels is None or len(labels) != 3:
        return None
    left, right, result = labels
    extents = [
        dict(zip(names, shape, strict=True)) for names, shape in zip(labels, to.shapes, strict=True)
    ]
    both = [name for name in left if name in right]
    batch, inner = ([n for n in both if (n in result) is is_kept] for is_kept in (True, False))
    rows, columns = ([n for n in side if n not in both] for side in (left, right))
    if {*batch, *rows, *columns} != {*result} or any(extents[0][n] != extents[1][n] for n in both):
        return None
    all_extents = {**extents[0], **extents[1]}
    sizes = [[all_extents[n] for n in names] for names in (batch, rows, inner, columns)]
    lead, m, k, n = sizes[0], *(math.prod(size) for size in sizes[1:])
    a = to.permuted(to.op.inputs[0], [left.index(name) for name in (*batch, *rows, *inner)])
    a = to.reshaped(a, [*lead, *sizes[1], *sizes[2]], [*lead, m, k])
    b = to.permuted(to.op.inputs[1], [right.index(name) for name in (*batch, *inner, *columns)])
    b = to.reshaped(b, [*lead, *sizes[2], *sizes[3]], [*lead, k, n])
    product = to.then("aten.matmul", a, b)
    whole = to.reshaped(product, [*lead, m, n], [*lead, *sizes[1], *sizes[3]])
    made = [*batch, *rows, *columns]
    return to.permuted(whole, [made.index(name) for name in result])


def axis_names(equation: str, shapes: Sequence[Sequence[int]]) -> list[list[str]] | None:
    """Names of the axes of each operand and of the result; None where one occurs twice in one."""
    before, arrow, after = equation.replace(" ", "").partition("->")
    parts = [*before.split(","), after]
    if not arrow or len(parts) != len(shapes):
        return None
    named = []
    for part, shape in zip(parts, shapes, strict=True):
        hidden = len(shape) - len(part.replace("...", ""))
        others = [f"...{number}" for number in range(hidden, 0, -1)]  # counted from the last
        first, dots, last = part.partition("...")
        names = [*first, *(others if dots else ()), *last]
        if len(set(names)) < len(names) or len(names) != len(shape):
            return None
        named.append(names)
    return named


def _moved(move: Callable[..., Moved]) -> Callable[[Spelling, Known], str]:
    def spell(to: Spelling, __: Known) -> str:
        parts, order, _ = move(to.shapes[0], **to.op.attributes)
        value = to.reshaped(to.op.inputs[0], to.shapes[0], parts)
        return to.reshaped(to.permuted(value, order), (), to.shapes[1])

    return spell


def _resize(to: Spelling, _: Known) -> str | None:
    options = ResizeOptions(**to.op.attributes)  # type: ignore[arg-type]
    if options.crops or (options.sizes is None and {*(options.scales or ())} != {1.0}):
        return None
    return to.op.inputs[0] if to.shapes[0] == to.shapes[-1] else None


def _pad(to: Spelling, _: Known) -> str | None:
    pads, mode = to.op.attributes["pads"], to.op.attributes.get("mode", "constant")
    number = to.op.attributes.get("value") or 0
    is_constant = mode == "constant"
    if not isinstance(pads, list) or len(to.op.inputs) > 1 or not isinstance(number, int | float):
        return None
    if is_constant and to.dtype.is_floating_point:
        return None
    sides, shape = wholes(pads), [*to.shapes[0]]
    axes = wholes(to.op.attributes.get("axes") or [*range(len(sides) // 2)])
    if min(sides, default=0) < 0 or not any(sides):
        return None
    value = to.op.inputs[0]
    for axis, before, after in zip(axes, sides, sides[len(axes) :], strict=False):
        axis %= len(shape)
        if not is_constant and before + after:
            places = source_positions(shape[axis], axis, before, after, str(mode))
            value = to.then("braid.gather", value, to.constant(places), axis=axis)
        elif before + after:
            extents = [[*shape[:axis], size, *shape[axis + 1 :]] for size in (before, after)]
            sides_of = [
                to.constant(torch.full(e, number, dtype=to.dtype)) for e in extents if e[axis]
            ]
            parts = [value, *sides_of] if not before else [sides_of[0], value, *sides_of[1:]]
            value = to.then("aten.cat", *parts, dim=axis)
        shape[axis] += before + after
    return value


def _clamp(to: Spelling, _: Known) -> str | None:
    value, given = to.op.inputs[0], to.op.attributes
    if to.dtype not in (torch.int32, torch.int64) or len(to.op.inputs) > 1:
        return None
    for kind, limit in (("aten.maximum", given.get("min")), ("aten.minimum", given.get("max"))):
        if isinstance(limit, int):
            value = to.then(kind, value, to.constant(torch.tensor(limit, dtype=to.dtype)))
        elif limit is not None:
            return None
    return value


def _scatter(to: Spelling, known: Known) -> str | None:
    """Of elements before and updates, those that are there afterwards."""
    data, name, updates = to.op.inputs
    indices = known(name)
    if indices is None or to.op.attributes.get("reduction", "none") != "none":
        return None
    depth = indices.shape[-1]
    extents, rest = to.shapes[0][:depth], to.shapes[0][depth:]
    slices, inner = math.prod(extents), math.prod(rest)
    ends = torch.tensor(extents)
    if bool(((indices < -ends) | (indices >= ends)).any()):
        return None  # is refused when it runs
    flat = flat_places(indices, extents)
    if not slices or not inner or len(flat.unique()) < flat.numel() or not flat.numel():
        return None
    sources = torch.arange(slices)
    sources[flat.flatten()] = slices + torch.arange(flat.numel())
    before = to.reshaped(data, to.shapes[0], (slices, inner))
    after = to.reshaped(updates, to.shapes[2], (flat.numel(), inner))
    both = to.then("aten.cat", before, after, dim=0)
    picked = to.then("braid.gather", both, to.constant(sources), axis=0)
    return to.reshaped(picked, (slices, inner), to.shapes[0])


def _product(to: Spelling, _: Known) -> str | None:
    dims = wholes(to.op.attributes.get("dims") or [])
    if len(dims) != 1 or not to.dtype.is_floating_point:
        return None
    axis = dims[0] % len(to.shapes[0])
    if not 1 < to.shapes[0][axis] <= MOST_FACTORS:
        return None
    first, *others = [
        to.then("aten.select", to.op.inputs[0], dim=axis, index=at)
        for at in range(to.shapes[0][axis])
    ]
    for other in others:
        first = to.then("aten.mul", first, other)
    return to.reshaped(first, (*to.shapes[0][:axis], *to.shapes[0][axis + 1 :]), to.shapes[-1])


def _batch_norm(to: Spelling, known: Known) -> str | None:
    """Of other values than images: those have a kernel."""
    tensors = [known(name) for name in to.op.inputs[1:]]
    eps, rank = to.op.attributes.get("eps"), len(to.shapes[0])
    if rank == 4 or len(tensors) != 4 or not isinstance(eps, float) or to.dtype != torch.float32:
        return None
    if any(tensor is None or tensor.dtype != torch.float32 for tensor in tensors):
        return None
    scale, shift, mean, variance = (tensor.double() for tensor in tensors if tensor is not None)
    factors = scale / torch.sqrt(variance + eps)
    by_channel = (-1, *[1] * (rank - 2))
    pair = (tensor.float().reshape(by_channel) for tensor in (factors, shift - mean * factors))
    times, plus = map(to.constant, pair)
    return to.then("aten.add", to.then("aten.mul", to.op.inputs[0], times), plus)


SPELLED: Mapping[str, Callable[[Spelling, Known], str | None]] = {
    "aten.einsum": _einsum,
    "braid.depth_to_space": _moved(depth_to_space),
    "braid.space_to_depth": _moved(space_to_depth),
    "braid.resize": _resize,
    "braid.pad": _pad,
    "braid.scatter_nd": _scatter,
    "braid.prod": _product,
    "aten.clamp": _clamp,
    "aten.batch_norm": _batch_norm,
}
