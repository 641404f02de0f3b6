"""Rules for operators: when their results at the positions of the request need no others.

A rule gets facts of the operands and gives facts of the results, or raises NotShown. What has no
rule here is not shown: convolutions and pooling over the axis, recurrent layers, statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from braid.core.graph import Operator
from braid.engine.importer.padding.facts import (
    FIRST,
    IN,
    OUT,
    Fact,
    NotShown,
    Place,
    is_real,
    regions,
)
from braid.engine.importer.padding.fills import (
    FINITE,
    FIRM,
    WILD,
    ZERO,
    Fill,
    elementwise,
    fill_of,
    join,
)

Places = Mapping[int, Place]


@dataclass(slots=True)
class Site:
    """One operator at the padded extent, with what is known of its operands."""

    operator: Operator
    before: Operator  # the same at the shorter extent
    facts: Sequence[Fact | None]
    shapes: Sequence[tuple[int, ...]]
    shorts: Sequence[tuple[int, ...]]  # the same at the shorter extent
    results: Sequence[tuple[int, ...]]  # shapes of the results
    short_results: Sequence[tuple[int, ...]]
    axes: Sequence[tuple[int, ...]]  # of the results
    dtypes: Sequence[torch.dtype | None]
    weakest: float = field(default=FIRM)  # of the numbers that hide

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.operator.attributes

    def operand(self, index: int) -> Fact:
        fact = self.facts[index]
        assert fact is not None
        return fact

    def has(self, index: int) -> bool:
        return index < len(self.facts) and self.facts[index] is not None

    def refuse(self, why: str) -> NotShown:
        return NotShown(f"operator {self.operator.name!r} ({self.operator.kind}) {why}")

    def hides(self, outside: Fill, first: Fill) -> bool:
        """Whether numbers outside do nothing beside the first one where the largest decide."""
        is_alive = first.is_finite
        if outside.is_hidden and is_alive:
            self.weakest = max(self.weakest, outside.value)
            return True
        return False


Rule = Callable[[Site], list[Fact]]


def _result(site: Site, fill_at: Callable[[Places], Fill], index: int = 0) -> Fact:
    axes = site.axes[index]
    return Fact(axes, {tuple(p.values()): fill_at(p) for p in regions(axes)})


def _smooth(*fills: Fill) -> Fill:
    return FINITE if all(fill.is_finite for fill in fills) else WILD


def by_elements(site: Site) -> list[Fact]:
    """Elementwise with broadcasting: dimensions are counted from the last one."""
    rank = max(map(len, site.shapes), default=0)

    def fill_at(places: Places) -> Fill:
        fills = []
        for fact, shape in zip(site.facts, site.shapes, strict=True):
            shift = rank - len(shape)
            at = {axis - shift: place for axis, place in places.items()}
            fills.append(None if fact is None else fact.at(at))
        return elementwise(_alone(site.operator), fills, site.dtypes)

    wanted = {
        axis + rank - len(shape)
        for fact, shape in zip(site.facts, site.shapes, strict=True)
        if fact is not None
        for axis in fact.axes
    }
    if wanted != set(site.axes[0]):
        raise site.refuse("makes another shape of the axis")
    blocks = {
        axis: {
            fact.blocks.get(axis - rank + len(shape), 1)
            for fact, shape in zip(site.facts, site.shapes, strict=True)
            if fact is not None and axis - rank + len(shape) in fact.axes
        }
        for axis in site.axes[0]
    }
    if any(len(counts) > 1 for counts in blocks.values()):
        raise site.refuse("joins the axis with another one")
    joined = {axis: max(counts) for axis, counts in blocks.items() if max(counts) > 1}
    return [replace(_result(site, fill_at), blocks=joined)]


def _alone(operator: Operator) -> Operator:
    """The operator without its epilogue, and without host operands."""
    attributes = {key: value for key, value in operator.attributes.items() if key != "epilogue"}
    return Operator(operator.name, operator.kind, operator.inputs, operator.outputs, attributes)


def _normal(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


def _untouched(site: Site, axis: int) -> None:
    """Refuse an operator that mixes positions along ``axis``."""
    if axis in site.operand(0).axes:
        raise site.refuse("mixes positions along the axis")


# Products


def _linear(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    _untouched(site, rank - 1)
    if site.operand(1).axes or (site.has(2) and site.operand(2).axes):
        raise site.refuse("has weights that follow the axis")
    weights = [site.operand(i).all for i in (1, 2) if site.has(i)]
    if site.has(3) and site.operand(3).blocks != x.blocks:
        raise site.refuse("joins the axis with another one")

    def fill_at(places: Places) -> Fill:
        summand = [site.operand(3).at(places)] if site.has(3) else []
        return _smooth(x.at(places), *weights, *summand)

    return [replace(_result(site, fill_at), blocks=x.blocks)]


def _matmul(site: Site) -> list[Fact]:
    a, b = site.operand(0), site.operand(1)
    ranks = [len(shape) for shape in site.shapes[:2]]
    if min(ranks) < 2:
        raise site.refuse("multiplies by a vector")
    rank = max(ranks)

    def of(fact: Fact, own: int, places: Places, dimension: int, inner: int, place: Place) -> Fill:
        """Fill of an operand: its row or column, and a place along the summed dimension."""
        shift = rank - own
        at = {axis - shift: p for axis, p in places.items() if axis < rank - 2}
        at[own + dimension] = places.get(rank + dimension, IN)
        at[own + inner] = place
        return fact.at(at)

    summed = ranks[0] - 1 in a.axes

    def fill_at(places: Places) -> Fill:
        left, right = (
            {place: of(a, ranks[0], places, -2, -1, place) for place in (IN, OUT)},
            {place: of(b, ranks[1], places, -1, -2, place) for place in (IN, OUT)},
        )
        if summed and not _vanishes(left[OUT], right[OUT]):
            if is_real(places):
                raise site.refuse("sums over the axis, and nothing makes its padding zero")
            return WILD
        return _smooth(left[IN], right[IN])

    return [_result(site, fill_at)]


def _vanishes(left: Fill, right: Fill) -> bool:
    return (left.is_zero and right.is_finite) or (right.is_zero and left.is_finite)


def _convolution(site: Site) -> list[Fact]:
    """Only kernels of one position along the axis."""
    x, weight = site.operand(0), site.shapes[1]
    for axis in x.axes:
        place = axis - 2
        if axis == 1 or (axis > 1 and not _is_single(site, weight[axis], place)):
            raise site.refuse("is a convolution over the axis")
    if site.operand(1).axes:
        raise site.refuse("has weights that follow the axis")
    weights = [site.operand(i).all for i in (1, 2) if site.has(i)]
    return [_result(site, lambda places: _smooth(x.at(places), *weights))]


def _is_single(site: Site, taps: int, place: int) -> bool:
    def amount(name: str, usual: int) -> int:
        values = site.attributes.get(name) or []
        return int(values[place]) if values else usual

    plain = amount("stride", 1) == 1 and amount("padding", 0) == 0
    return taps == 1 and plain and not site.attributes.get("transposed")


# Normalisations, softmax and sums


def _over_last(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    for axis in range(_normal(site.attributes["axis"], rank), rank):
        _untouched(site, axis)
    if any(site.operand(i).axes for i in range(1, len(site.facts)) if site.has(i)):
        raise site.refuse("has weights that follow the axis")
    return [replace(_result(site, lambda places: _smooth(x.at(places))), blocks=x.blocks)]


def _batch_norm(site: Site) -> list[Fact]:
    _untouched(site, 1)
    x = site.operand(0)
    return [_result(site, lambda places: _smooth(x.at(places)))]


def _softmax(site: Site) -> list[Fact]:
    x, dim = site.operand(0), _normal(site.attributes["dim"], len(site.shapes[0]))
    is_log = site.operator.kind == "aten.log_softmax"

    def fill_at(places: Places) -> Fill:
        if dim not in x.axes:
            return FINITE if x.at(places).is_tame and not is_log else _smooth(x.at(places))
        others = {axis: place for axis, place in places.items() if axis != dim}
        tame = all(x.at({**others, dim: place}).is_tame for place in (IN, OUT))
        if site.hides(x.at({**others, dim: OUT}), x.at({**others, dim: FIRST})):
            if places[dim] is OUT:
                return WILD if is_log else ZERO
            return FINITE if tame and not is_log else WILD
        if is_real(others):
            raise site.refuse("is over the axis, and nothing hides its padding")
        return WILD

    return [_result(site, fill_at)]


_SUMS = frozenset({"aten.sum", "braid.l1_norm", "braid.l2_norm", "braid.sum_square"})


def _reduction(site: Site) -> list[Fact]:
    x, rank, kind = site.operand(0), len(site.shapes[0]), site.operator.kind
    dims, keep = site.attributes.get("dims"), bool(site.attributes.get("keepdim", False))
    if not dims:
        dims = [] if site.attributes.get("noop") and dims is not None else list(range(rank))
    reduced = {_normal(int(dim), rank) for dim in dims}
    over = [axis for axis in x.axes if axis in reduced]
    kept = [axis for axis in range(rank) if keep or axis not in reduced]
    if len(over) > 1:
        raise site.refuse("is over the axis twice")

    def fill_at(places: Places) -> Fill:
        at = {kept[axis]: place for axis, place in places.items()}
        for axis in over:
            outside, first = x.at({**at, axis: OUT}), x.at({**at, axis: FIRST})
            is_bool = site.dtypes[0] is torch.bool
            fits = (
                (kind in _SUMS and outside.is_zero)
                or (kind == "aten.amax" and is_bool and outside.is_zero)
                or (kind == "aten.amin" and is_bool and outside == Fill(outside.kind, 1.0))
                or (kind in ("aten.amax", "aten.logsumexp") and site.hides(outside, first))
            )
            if not fits and is_real(at):
                raise site.refuse("is over the axis, and its padding counts")
            if not fits:
                return WILD
        return _smooth(x.at(at))

    return [_result(site, fill_at)]


def _arg_extreme(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dim, keep = (
        _normal(int(site.attributes.get("dim", 0)), rank),
        site.attributes.get("keepdim", True),
    )
    kept = [axis for axis in range(rank) if keep or axis != dim]

    def fill_at(places: Places) -> Fill:
        at = {kept[axis]: place for axis, place in places.items()}
        if dim in x.axes and is_real(at):
            hidden = site.hides(x.at({**at, dim: OUT}), x.at({**at, dim: FIRST}))
            if not hidden or site.operator.kind != "braid.argmax":
                raise site.refuse("is over the axis, and its padding counts")
        return FINITE

    return [_result(site, fill_at)]


def _running(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dim = site.attributes["dim"]
    dim = _normal(int(dim[0] if isinstance(dim, list) else dim), rank)
    if dim in x.axes and site.attributes.get("reverse"):
        for places in regions([axis for axis in x.axes if axis != dim]):
            if is_real(places) and not x.at({**places, dim: OUT}).is_zero:
                raise site.refuse("runs from the end of the axis")
    return [_result(site, lambda places: _smooth(x.all))]


# Views and moves


def _permute(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dims = site.attributes.get("dims") or list(range(rank))[::-1]
    order = [_normal(int(dim), rank) for dim in dims]
    return [_result(site, lambda p: x.at({order[axis]: place for axis, place in p.items()}))]


def _reshape(site: Site) -> list[Fact]:
    """A reshape of which the axis becomes a dimension, or the first or last part of one."""
    x = site.operand(0)
    before, after = site.shapes[0], site.results[0]
    pairs, parts = dict[int, int](), set[int]()  # dimension of the result -> of x
    blocks = dict[int, int]()
    for ins, outs in _groups(before, after):
        sizes = (
            [site.shorts[0][axis] for axis in ins],
            [site.short_results[0][axis] for axis in outs],
        )
        sources = [axis for axis in ins if axis in x.axes]
        targets = [axis for axis in outs if axis in site.axes[0]]
        if math.prod(sizes[0]) != math.prod(sizes[1]) or len(sources) != len(targets):
            raise site.refuse("joins the axis with another one")
        if not sources:
            continue
        if len(sources) > 1:
            raise site.refuse("joins the axis with another one")
        count = x.blocks.get(sources[0], 1) * math.prod(before[a] for a in ins if a < sources[0])
        outer = math.prod(after[a] for a in outs if a < targets[0])
        inner = [before[a] for a in ins if a > sources[0]] + [
            after[a] for a in outs if a > targets[0]
        ]
        if count % outer or ((count, outer) != (1, 1) and any(extent != 1 for extent in inner)):
            raise site.refuse("joins the axis with another one")
        blocks |= {targets[0]: count // outer} if count > outer else {}
        pairs[targets[0]] = sources[0]
        parts |= {targets[0]} if any(after[a] != 1 for a in outs if a > targets[0]) else set()
    if set(pairs) != set(site.axes[0]) or set(pairs.values()) != set(x.axes):
        raise site.refuse("joins the axis with another one")

    def fill_at(places: Places) -> Fill:
        at = {pairs[axis]: IN if axis in parts and p is FIRST else p for axis, p in places.items()}
        return x.at(at)

    return [replace(_result(site, fill_at), blocks=blocks)]


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions that a reshape turns into others, outermost first, in groups of equal size."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs, size_in, size_out = list[int](), list[int](), 1, 1
        while not ins or not outs or size_in != size_out:
            if i < len(before) and (not ins or size_in < size_out or j >= len(after)):
                size_in, i = size_in * before[i], i + 1
                ins.append(i - 1)
            elif j < len(after):
                size_out, j = size_out * after[j], j + 1
                outs.append(j - 1)
            else:
                break
        groups.append((ins, outs))
    return groups


def _expand(site: Site) -> list[Fact]:
    x, shift = site.operand(0), len(site.results[0]) - len(site.shapes[0])
    new = [axis for axis in site.axes[0] if axis - shift not in x.axes]
    if any(axis >= shift and site.shapes[0][axis - shift] != 1 for axis in new):
        raise site.refuse("makes another shape of the axis")
    return [_result(site, lambda p: x.at({axis - shift: place for axis, place in p.items()}))]


def _slice(site: Site) -> list[Fact]:
    x, shape, result = site.operand(0), site.shapes[0], site.results[0]
    now: Mapping[str, Any] = site.attributes
    then: Mapping[str, Any] = site.before.attributes
    starts, ends, old = now["starts"], now["ends"], then["starts"]
    axes = now.get("axes") or list(range(len(starts)))
    steps = now.get("steps") or [1] * len(starts)
    firsts, shifted, shorter = set[int](), set[int](), set[int]()
    for start, end, step, axis, was in zip(starts, ends, steps, axes, old, strict=True):
        axis = _normal(int(axis), len(shape))
        if axis not in x.axes and axis not in site.axes[0]:
            continue
        if step != 1 or start != was or start < 0:
            raise site.refuse("takes positions from the end of the axis")
        if axis not in site.axes[0]:
            if (start, end) != (0, 1):
                raise site.refuse("takes positions that a short request does not have")
            firsts.add(axis)
        elif axis in x.axes:
            shifted |= {axis} if start else set()
            shorter |= {axis} if result[axis] != shape[axis] - start else set()

    def fill_at(places: Places) -> Fill:
        at = dict(places) | dict.fromkeys(firsts, FIRST)
        at |= {axis: IN for axis in shifted if places.get(axis) is FIRST}
        fills = [x.at(at)]
        for axis in shorter & set(places):
            fills += [x.at({**at, axis: IN})] if places[axis] is OUT else []
        return join(*fills)

    return [_result(site, fill_at)]


def _cat(site: Site) -> list[Fact]:
    dim = _normal(int(site.attributes["dim"]), len(site.shapes[0]))
    facts = [fact for fact in site.facts if fact is not None]
    if any(dim in fact.axes for fact in facts[:-1]):
        raise site.refuse("puts something behind the end of the axis")

    def fill_at(places: Places) -> Fill:
        here = {axis: place for axis, place in places.items() if axis != dim}
        if dim not in site.axes[0]:
            return join(*(fact.at(here) for fact in facts))
        if places[dim] is OUT:
            return facts[-1].at(places)
        if places[dim] is FIRST:
            return facts[0].at({**here, dim: FIRST})
        return join(*(fact.at(here) for fact in facts))

    return [_result(site, fill_at)]


def _split(site: Site) -> list[Fact]:
    _untouched(site, _normal(int(site.attributes.get("axis", 0)), len(site.shapes[0])))
    x = site.operand(0)
    return [_result(site, lambda p: x.at(p), i) for i in range(len(site.axes))]


def _tile(site: Site) -> list[Fact]:
    x = site.operand(0)
    for axis, repeats in enumerate(site.attributes["repeats"]):
        if repeats != 1 and axis in x.axes:
            raise site.refuse("repeats the axis")
    if set(site.axes[0]) - set(x.axes):
        raise site.refuse("makes another shape of the axis")
    return [_result(site, lambda p: x.at(p))]


def _pad(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    pads, axes = site.attributes["pads"], site.attributes.get("axes") or list(range(rank))
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if begin or end:
            _untouched(site, _normal(int(axis), rank))
    return [_result(site, lambda p: _smooth(x.at(p)))]


def _trilu(site: Site) -> list[Fact]:
    x = site.operand(0)
    return [_result(site, lambda p: join(x.at(p), ZERO))]


def _constant(site: Site) -> list[Fact]:
    """Made of attributes: its content is compared where that is looked at."""
    then, now = site.before.attributes, site.attributes
    if any(then.get(key) != now.get(key) for key in ("start", "delta", "value", "k")):
        raise site.refuse("makes other numbers at other extents")
    return [_result(site, lambda _: WILD)]


def _full_like(site: Site) -> list[Fact]:
    value = fill_of(torch.tensor([float(site.attributes["value"])]))
    return [_result(site, lambda _: value)]


# Gathering


def _gather(site: Site) -> list[Fact]:
    rank = len(site.shapes[0])
    return _gathered(site, _normal(int(site.attributes.get("axis", 0)), rank))


def _embedding(site: Site) -> list[Fact]:
    return _gathered(site, 0)


def _gathered(site: Site, axis: int) -> list[Fact]:
    """Slices of x: the axis is replaced by those of the indices."""
    x, indices, width = site.operand(0), site.operand(1), len(site.shapes[1])
    along = _along(site, indices) if axis in x.axes else None

    def fill_at(places: Places) -> Fill:
        at: dict[int, Place] = {}
        for out, place in places.items():
            if out < axis:
                at[out] = place
            elif out >= axis + width:
                at[out - width + 1] = place
            elif along is not None and out - axis == along:
                at[axis] = place
        if axis in x.axes and along is None:
            at[axis] = FIRST
        return x.at(at)

    return [_result(site, fill_at)]


def _along(site: Site, indices: Fact, content: Tensor | None = None) -> int | None:
    """Axis of constant indices along which they count 0, 1, 2, ...; None if all are 0.

    Raises:
        NotShown: they are others.
    """
    content = indices.content if content is None else content
    if content is not None and not content.any():
        return None
    for axis in indices.axes if content is not None else ():
        assert content is not None
        shape = [-1 if other == axis else 1 for other in range(content.dim())]
        counted = torch.arange(content.shape[axis]).reshape(shape)
        if bool((content == counted).all()):
            return axis
    raise site.refuse("picks positions of the axis")


def _select(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dim = _normal(int(site.attributes["dim"]), rank)
    if dim in x.axes and site.attributes["index"] != 0:
        raise site.refuse("picks positions of the axis")

    def fill_at(places: Places) -> Fill:
        at = {axis + (axis >= dim): place for axis, place in places.items()}
        return x.at({**at, dim: FIRST} if dim in x.axes else at)

    return [_result(site, fill_at)]


def _gather_elements(site: Site) -> list[Fact]:
    rank = len(site.shapes[0])
    axis, x = _normal(int(site.attributes.get("axis", 0)), rank), site.operand(0)
    if axis in x.axes:
        raise site.refuse("picks positions of the axis")
    return [_result(site, lambda p: x.at({a: place for a, place in p.items() if a in x.axes}))]


def _gather_nd(site: Site) -> list[Fact]:
    """Index tuples of which those along the axis count its positions."""
    x, indices = site.operand(0), site.operand(1)
    depth, width = site.shapes[1][-1], len(site.shapes[1]) - 1
    if site.attributes.get("batch_dims") or width in indices.axes:
        raise site.refuse("picks positions of the axis")
    sources: dict[int, int] = {}  # dimension of the indices -> axis of x
    for axis in (axis for axis in x.axes if axis < depth):
        if indices.content is None:
            raise site.refuse("picks positions of the axis")
        along = _along(site, indices, indices.content[..., axis])
        if along is None or along in sources:
            raise site.refuse("picks positions of the axis")
        sources[along] = axis

    def fill_at(places: Places) -> Fill:
        at = {
            sources.get(out, -1) if out < width else out - width + depth: place
            for out, place in places.items()
        }
        return x.at(at)

    return [_result(site, fill_at)]


# Attention as one operator


def _attention(site: Site) -> list[Fact]:
    """Queries, keys and values [..., length, head]; the mask hides keys, or a query its future."""
    q, k, v = (site.operand(index) for index in range(3))
    rank, options = len(site.shapes[0]), site.attributes
    length = rank - 2
    is_plain = not any(site.has(index) for index in range(4, len(site.facts)))
    windowed = options.get("left", -1) >= 0 or options.get("right", -1) >= 0
    if not is_plain or windowed or options.get("scores") is not None or len(site.axes) > 3:
        raise site.refuse("has a cache, lengths or a window")
    if any(set(fact.axes) - {length} for fact in (q, k, v)):
        raise site.refuse("has the axis in another dimension")
    mask = site.operand(3) if site.has(3) else None
    shift = 4 - len(site.shapes[3]) if mask is not None else 0

    def hidden(place: Place) -> bool:
        if options.get("causal"):
            return True
        if mask is None or 3 - shift not in mask.axes:
            return False
        is_bool = site.dtypes[3] is torch.bool
        at = {2 - shift: place}
        outside, first = (mask.at({**at, 3 - shift: where}) for where in (OUT, FIRST))
        if is_bool:
            return outside.is_zero and first == Fill(first.kind, 1.0) and first.is_finite
        return site.hides(outside, first)

    def fill_at(places: Places) -> Fill:
        place = places.get(length, IN)
        needs = [fact.at({length: where}) for fact in (q, k, v) for where in (IN, OUT)]
        if length not in k.axes or hidden(place):
            return _smooth(*needs)
        if place is not OUT:
            raise site.refuse("attends over the axis, and nothing hides its padding")
        return WILD

    copies = [
        Fact(site.axes[i], {tuple(p.values()): WILD for p in regions(site.axes[i])})
        for i in range(1, len(site.axes))
    ]
    return [_result(site, fill_at), *copies]


def _rotary(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    length = rank - 2
    tables = [site.operand(index) for index in (1, 2)]
    if set(x.axes) - {length} or any(set(fact.axes) - {1} for fact in tables):
        raise site.refuse("has the axis in another dimension")
    if site.has(3) and tables[0].axes:
        raise site.refuse("has the axis in another dimension")
    fills = [fact.all for fact in tables]
    return [_result(site, lambda p: _smooth(x.at(p), *fills))]


TAKES_BLOCKS = frozenset(
    {
        *("aten.linear", "braid.linear_add", "aten.layer_norm", "braid.rms_norm"),
        *("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze"),
    }
)
"""Kinds, besides elementwise ones, whose rules know of an axis that is joined with outer ones."""

RULES: Mapping[str, Rule] = {
    "aten.linear": _linear,
    "braid.linear_add": _linear,
    "aten.matmul": _matmul,
    "aten.convolution": _convolution,
    "aten.layer_norm": _over_last,
    "braid.rms_norm": _over_last,
    "aten.batch_norm": _batch_norm,
    "aten.softmax": _softmax,
    "aten.log_softmax": _softmax,
    "aten.sum": _reduction,
    "aten.mean": _reduction,
    "aten.amax": _reduction,
    "aten.amin": _reduction,
    "aten.logsumexp": _reduction,
    "braid.l1_norm": _reduction,
    "braid.l2_norm": _reduction,
    "braid.sum_square": _reduction,
    "braid.prod": _reduction,
    "braid.argmax": _arg_extreme,
    "braid.argmin": _arg_extreme,
    "braid.cumsum": _running,
    "aten.permute": _permute,
    "braid.reshape": _reshape,
    "braid.flatten": _reshape,
    "braid.squeeze": _reshape,
    "braid.unsqueeze": _reshape,
    "braid.expand": _expand,
    "braid.expand_as": _expand,
    "braid.slice": _slice,
    "aten.cat": _cat,
    "braid.split": _split,
    "braid.tile": _tile,
    "braid.pad": _pad,
    "braid.trilu": _trilu,
    "braid.range": _constant,
    "braid.constant_of_shape": _constant,
    "braid.full_like": _full_like,
    "braid.gather": _gather,
    "aten.embedding": _embedding,
    "aten.select": _select,
    "braid.gather_elements": _gather_elements,
    "braid.gather_nd": _gather_nd,
    "braid.attention": _attention,
    "aten.scaled_dot_product_attention": _attention,
    "braid.rotary_embedding": _rotary,
}
