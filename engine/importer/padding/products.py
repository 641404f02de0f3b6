"""Rules of products and convolutions, of normalisations, softmax, reductions and running sums."""

from __future__ import annotations

from dataclasses import replace

import torch

from braid.engine.importer.padding.facts import (
    FIRST,
    IN,
    OUT,
    Fact,
    Place,
    is_real,
    regions,
)
from braid.engine.importer.padding.fills import (
    FINITE,
    WILD,
    ZERO,
    Fill,
)
from braid.engine.importer.padding.site import Places, Site, normal, result, smooth, untouched


def linear(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    untouched(site, rank - 1)
    if site.operand(1).axes or (site.has(2) and site.operand(2).axes):
        raise site.refuse("has weights that follow the axis")
    weights = [site.operand(i).all for i in (1, 2) if site.has(i)]
    if site.has(3) and site.operand(3).blocks != x.blocks:
        raise site.refuse("joins the axis with another one")

    def fill_at(places: Places) -> Fill:
        summand = [site.operand(3).at(places)] if site.has(3) else []
        return smooth(x.at(places), *weights, *summand)

    return [replace(result(site, fill_at), blocks=x.blocks)]


def matmul(site: Site) -> list[Fact]:
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
        return smooth(left[IN], right[IN])

    return [result(site, fill_at)]


def _vanishes(left: Fill, right: Fill) -> bool:
    return (left.is_zero and right.is_finite) or (right.is_zero and left.is_finite)


def convolution(site: Site) -> list[Fact]:
    """Only kernels of one position along the axis."""
    x, weight = site.operand(0), site.shapes[1]
    for axis in x.axes:
        place = axis - 2
        if axis == 1 or (axis > 1 and not _is_single(site, weight[axis], place)):
            raise site.refuse("is a convolution over the axis")
    if site.operand(1).axes:
        raise site.refuse("has weights that follow the axis")
    weights = [site.operand(i).all for i in (1, 2) if site.has(i)]
    return [result(site, lambda places: smooth(x.at(places), *weights))]


def _is_single(site: Site, taps: int, place: int) -> bool:
    def amount(name: str, usual: int) -> int:
        values = site.attributes.get(name) or []
        return int(values[place]) if values else usual

    plain = amount("stride", 1) == 1 and amount("padding", 0) == 0
    return taps == 1 and plain and not site.attributes.get("transposed")


def over_last(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    for axis in range(normal(site.attributes["axis"], rank), rank):
        untouched(site, axis)
    if any(site.operand(i).axes for i in range(1, len(site.facts)) if site.has(i)):
        raise site.refuse("has weights that follow the axis")
    return [replace(result(site, lambda places: smooth(x.at(places))), blocks=x.blocks)]


def batch_norm(site: Site) -> list[Fact]:
    untouched(site, 1)
    x = site.operand(0)
    return [result(site, lambda places: smooth(x.at(places)))]


def softmax(site: Site) -> list[Fact]:
    x, dim = site.operand(0), normal(site.attributes["dim"], len(site.shapes[0]))
    is_log = site.operator.kind == "aten.log_softmax"

    def fill_at(places: Places) -> Fill:
        if dim not in x.axes:
            return FINITE if x.at(places).is_tame and not is_log else smooth(x.at(places))
        others = {axis: place for axis, place in places.items() if axis != dim}
        tame = all(x.at({**others, dim: place}).is_tame for place in (IN, OUT))
        if site.hides(x.at({**others, dim: OUT}), x.at({**others, dim: FIRST})):
            if places[dim] is OUT:
                return WILD if is_log else ZERO
            return FINITE if tame and not is_log else WILD
        if is_real(others):
            raise site.refuse("is over the axis, and nothing hides its padding")
        return WILD

    return [result(site, fill_at)]


_SUMS = frozenset({"aten.sum", "braid.l1_norm", "braid.l2_norm", "braid.sum_square"})


def reduction(site: Site) -> list[Fact]:
    x, rank, kind = site.operand(0), len(site.shapes[0]), site.operator.kind
    dims, keep = site.attributes.get("dims"), bool(site.attributes.get("keepdim", False))
    if not dims:
        dims = [] if site.attributes.get("noop") and dims is not None else list(range(rank))
    reduced = {normal(int(dim), rank) for dim in dims}
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
        return smooth(x.at(at))

    return [result(site, fill_at)]


def arg_extreme(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dim, keep = (
        normal(int(site.attributes.get("dim", 0)), rank),
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

    return [result(site, fill_at)]


def running(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dim = site.attributes["dim"]
    dim = normal(int(dim[0] if isinstance(dim, list) else dim), rank)
    if dim in x.axes and site.attributes.get("reverse"):
        for places in regions([axis for axis in x.axes if axis != dim]):
            if is_real(places) and not x.at({**places, dim: OUT}).is_zero:
                raise site.refuse("runs from the end of the axis")
    return [result(site, lambda places: smooth(x.all))]
