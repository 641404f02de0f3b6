"""Rules of views, and of operators that move or pick elements, or make constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from braid.engine.importer.padding.facts import (
    FIRST,
    IN,
    OUT,
    Fact,
    Place,
)
from braid.engine.importer.padding.fills import (
    WILD,
    ZERO,
    Fill,
    fill_of,
    join,
)
from braid.engine.importer.padding.site import Places, Site, normal, result, smooth, untouched


def permute(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dims = site.attributes.get("dims") or list(range(rank))[::-1]
    order = [normal(int(dim), rank) for dim in dims]
    return [result(site, lambda p: x.at({order[axis]: place for axis, place in p.items()}))]


def reshape(site: Site) -> list[Fact]:
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

    return [replace(result(site, fill_at), blocks=blocks)]


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


def expand(site: Site) -> list[Fact]:
    x, shift = site.operand(0), len(site.results[0]) - len(site.shapes[0])
    new = [axis for axis in site.axes[0] if axis - shift not in x.axes]
    if any(axis >= shift and site.shapes[0][axis - shift] != 1 for axis in new):
        raise site.refuse("makes another shape of the axis")
    return [result(site, lambda p: x.at({axis - shift: place for axis, place in p.items()}))]


def slice_(site: Site) -> list[Fact]:
    x, shape, cut = site.operand(0), site.shapes[0], site.results[0]
    now: Mapping[str, Any] = site.attributes
    then: Mapping[str, Any] = site.before.attributes
    starts, ends, old = now["starts"], now["ends"], then["starts"]
    axes = now.get("axes") or list(range(len(starts)))
    steps = now.get("steps") or [1] * len(starts)
    firsts, shifted, shorter = set[int](), set[int](), set[int]()
    for start, end, step, axis, was in zip(starts, ends, steps, axes, old, strict=True):
        axis = normal(int(axis), len(shape))
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
            shorter |= {axis} if cut[axis] != shape[axis] - start else set()

    def fill_at(places: Places) -> Fill:
        at = dict(places) | dict.fromkeys(firsts, FIRST)
        at |= {axis: IN for axis in shifted if places.get(axis) is FIRST}
        fills = [x.at(at)]
        for axis in shorter & set(places):
            fills += [x.at({**at, axis: IN})] if places[axis] is OUT else []
        return join(*fills)

    return [result(site, fill_at)]


def cat(site: Site) -> list[Fact]:
    dim = normal(int(site.attributes["dim"]), len(site.shapes[0]))
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

    return [result(site, fill_at)]


def split(site: Site) -> list[Fact]:
    untouched(site, normal(int(site.attributes.get("axis", 0)), len(site.shapes[0])))
    x = site.operand(0)
    return [result(site, lambda p: x.at(p), i) for i in range(len(site.axes))]


def tile(site: Site) -> list[Fact]:
    x = site.operand(0)
    for axis, repeats in enumerate(site.attributes["repeats"]):
        if repeats != 1 and axis in x.axes:
            raise site.refuse("repeats the axis")
    if set(site.axes[0]) - set(x.axes):
        raise site.refuse("makes another shape of the axis")
    return [result(site, lambda p: x.at(p))]


def pad(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    pads, axes = site.attributes["pads"], site.attributes.get("axes") or list(range(rank))
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if begin or end:
            untouched(site, normal(int(axis), rank))
    return [result(site, lambda p: smooth(x.at(p)))]


def trilu(site: Site) -> list[Fact]:
    x = site.operand(0)
    return [result(site, lambda p: join(x.at(p), ZERO))]


def constant(site: Site) -> list[Fact]:
    """Made of attributes: its content is compared where that is looked at."""
    then, now = site.before.attributes, site.attributes
    if any(then.get(key) != now.get(key) for key in ("start", "delta", "value", "k")):
        raise site.refuse("makes other numbers at other extents")
    return [result(site, lambda _: WILD)]


def full_like(site: Site) -> list[Fact]:
    value = fill_of(torch.tensor([float(site.attributes["value"])]))
    return [result(site, lambda _: value)]


# Gathering


def gather(site: Site) -> list[Fact]:
    rank = len(site.shapes[0])
    return _gathered(site, normal(int(site.attributes.get("axis", 0)), rank))


def embedding(site: Site) -> list[Fact]:
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

    return [result(site, fill_at)]


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


def select(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    dim = normal(int(site.attributes["dim"]), rank)
    if dim in x.axes and site.attributes["index"] != 0:
        raise site.refuse("picks positions of the axis")

    def fill_at(places: Places) -> Fill:
        at = {axis + (axis >= dim): place for axis, place in places.items()}
        return x.at({**at, dim: FIRST} if dim in x.axes else at)

    return [result(site, fill_at)]


def gather_elements(site: Site) -> list[Fact]:
    rank = len(site.shapes[0])
    axis, x = normal(int(site.attributes.get("axis", 0)), rank), site.operand(0)
    if axis in x.axes:
        raise site.refuse("picks positions of the axis")
    return [result(site, lambda p: x.at({a: place for a, place in p.items() if a in x.axes}))]


def gather_nd(site: Site) -> list[Fact]:
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

    return [result(site, fill_at)]
