"""Rules of attention as one operator, and of its turned positions."""

from __future__ import annotations

import torch

from braid.engine.importer.padding.facts import (
    FIRST,
    IN,
    OUT,
    Fact,
    Place,
    regions,
)
from braid.engine.importer.padding.fills import (
    WILD,
    Fill,
)
from braid.engine.importer.padding.site import Places, Site, result, smooth


def attention(site: Site) -> list[Fact]:
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
            return smooth(*needs)
        if place is not OUT:
            raise site.refuse("attends over the axis, and nothing hides its padding")
        return WILD

    copies = [
        Fact(site.axes[i], {tuple(p.values()): WILD for p in regions(site.axes[i])})
        for i in range(1, len(site.axes))
    ]
    return [result(site, fill_at), *copies]


def rotary(site: Site) -> list[Fact]:
    x, rank = site.operand(0), len(site.shapes[0])
    length = rank - 2
    tables = [site.operand(index) for index in (1, 2)]
    if set(x.axes) - {length} or any(set(fact.axes) - {1} for fact in tables):
        raise site.refuse("has the axis in another dimension")
    if site.has(3) and tables[0].axes:
        raise site.refuse("has the axis in another dimension")
    fills = [fact.all for fact in tables]
    return [result(site, lambda p: smooth(x.at(p), *fills))]
