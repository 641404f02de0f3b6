"""Regions of a graph, and an engine for each of them by an exact dynamic program.

    units: a b c │ d e f g │ h i      borders: positions where few values cross, all of them tensors
           own     engine    own      of the model's file

Collage (Jeon et al., PACT 2022) places libraries so on units and patterns. Here a region is long:
every border costs a call and, often, a change of layout, and engines fuse what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, log
from typing import NamedTuple

from braid.core.graph import OpGraph
from braid.core.tensor import DTYPE_BYTES, TensorType

MOST_REGIONS = 6

MOST_CROSSING = 2
"""Values that cross a border, at most, inputs of the graph aside."""

LEAST_WORK = 0.08
"""Part of all work that each region has, at least: a small one pays for no border."""


BYTES_PER_US = 4e3
"""Speed at which a tensor changes its layout between own kernels and an engine, about."""

BORDER_US = 200.0
"""What a border takes beside that, about: a call, threads that wake up, fusions that are lost."""

EQUAL = 0.05
"""Gain of a cut between units of the same kind, as a part of the work on its smaller side."""


class Choice(NamedTuple):
    """Who runs a region."""

    engine: str  # of braid.core.runtimes; empty: own kernels
    threads: int


def borders(graph: OpGraph, tensors: Collection[str], most: int = MOST_CROSSING) -> dict[int, int]:
    """Positions between units of a static graph at which it can be cut, and the bytes that cross.

    Only ``tensors`` may cross, at most ``most`` of them. A region needs no other border: what it
    reads was made before it, as units stand in order.
    """
    made = {value: at for at, unit in enumerate(graph.operators) for value in unit.outputs}
    last = dict(made)
    for at, unit in enumerate(graph.operators):
        last.update((value, at) for value in unit.inputs if value in made)
    crossing: dict[int, list[str]] = {at: [] for at in range(1, len(graph))}
    for value, at in made.items():
        for position in range(at + 1, last[value] + 1):
            crossing[position].append(value)
    return {
        at: sum(_size_bytes(graph.spec(value)) for value in values)
        for at, values in crossing.items()
        if 0 < len(values) <= most and all(value in tensors for value in values)
    }


def _size_bytes(spec: TensorType) -> int:
    return spec.elements * DTYPE_BYTES[spec.dtype]


def border_us(size_bytes: int) -> float:
    """Cost of a border between own kernels and an engine that so many bytes cross, about."""
    return BORDER_US + size_bytes / BYTES_PER_US


def regions(graph: OpGraph, at: Mapping[int, int], work_us: Sequence[float]) -> list[range]:
    """Cut a static graph where the kinds of its units change most, then into equal parts.

    It is not cut where a border may cost more than a cut gains. ``at``: positions at which it can
    be cut, and the bytes that cross.
    """
    least = LEAST_WORK * sum(work_us)
    parts = [range(len(graph))]
    while len(parts) < MOST_REGIONS:
        cuts = [
            (gain, cut, part)
            for part in parts
            for cut, crossing_bytes in at.items()
            if part.start < cut < part.stop
            and min(_work(work_us, part.start, cut), _work(work_us, cut, part.stop)) >= least
            and (gain := _gain(graph, part, cut, work_us)) > border_us(crossing_bytes)
        ]
        if not cuts:
            break
        _, cut, part = max(cuts, key=lambda entry: entry[:2])
        place = parts.index(part)
        parts[place : place + 1] = [range(part.start, cut), range(cut, part.stop)]
    return parts


def _work(work_us: Sequence[float], start: int, stop: int) -> float:
    return sum(work_us[start:stop])


def _gain(graph: OpGraph, part: range, cut: int, work_us: Sequence[float]) -> float:
    """Work that a cut sorts by kind; then, far less, how equal it makes the two sides."""
    whole, left, right = (
        _disorder(graph, span, work_us)
        for span in (part, range(part.start, cut), range(cut, part.stop))
    )
    smaller = min(_work(work_us, part.start, cut), _work(work_us, cut, part.stop))
    return whole - left - right + EQUAL * smaller


def _disorder(graph: OpGraph, span: range, work_us: Sequence[float]) -> float:
    """Entropy of the kinds of some units, times their work."""
    by_kind: dict[str, float] = {}
    for at in span:
        kind = _family(graph.operators[at].kind)
        by_kind[kind] = by_kind.get(kind, 0.0) + work_us[at]
    total = sum(by_kind.values())
    return -sum(work * log(work / total) for work in by_kind.values() if work > 0)


def _family(kind: str) -> str:
    if "convolution" in kind:
        return "convolution"
    return "product" if "linear" in kind or "matmul" in kind else "rest"


def cheapest(
    costs_us: Sequence[Mapping[Choice, float]], price_us: Callable[[int, Choice, Choice], float]
) -> tuple[list[Choice], float]:
    """The cheapest choice for each region of a chain, and its cost.

        best(r, c) = costs[r][c] + min over d of best(r - 1, d) + price(r, d, c)

    ``price_us``: cost of the border before a region, by who runs the two sides; may be negative.
    """
    best = dict(costs_us[0])
    came_from: list[dict[Choice, Choice]] = []
    for region, costs in enumerate(costs_us[1:], start=1):
        before, best = best, {}
        came_from.append({})
        for choice, cost in costs.items():
            least, origin = min(
                (us + price_us(region, other, choice), other) for other, us in before.items()
            )
            best[choice], came_from[-1][choice] = least + cost, origin
    last = min(best, key=lambda choice: (best[choice], choice))
    path = [last]
    for origins in reversed(came_from):
        path.append(origins[path[-1]])
    return path[::-1], best[last]


def runs_of(
    parts: Sequence[range],
    path: Sequence[Choice],
    costs_us: Sequence[Mapping[Choice, float]],
    price_us: Callable[[int, Choice, Choice], float],
) -> list[tuple[range, Choice, float]]:
    """Join regions that follow on each other and are run by the same; with the cost of each run.

    A run's cost has that of the border before it, so that the costs add up to that of the path.
    """
    joined: list[tuple[range, Choice, float]] = []
    for region, (part, choice) in enumerate(zip(parts, path, strict=True)):
        us = costs_us[region][choice]
        us += price_us(region, path[region - 1], choice) if region else 0.0
        if joined and joined[-1][1] == choice:
            first, _, before_us = joined[-1]
            joined[-1] = range(first.start, part.stop), choice, before_us + us
        else:
            joined.append((part, choice, us))
    return joined


def least_of_one(
    costs_us: Sequence[Mapping[Choice, float]], price_us: Callable[[int, Choice, Choice], float]
) -> float:
    """Cost of the cheapest that runs all regions; infinite if none can."""
    shared = set(costs_us[0]).intersection(*costs_us[1:])
    return min(
        (
            sum(costs[choice] for costs in costs_us)
            + sum(price_us(region, choice, choice) for region in range(1, len(costs_us)))
            for choice in shared
        ),
        default=inf,
    )
