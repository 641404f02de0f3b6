"""Regions of a graph, and an engine for each of them by an exact dynamic program.

    units: a b c │ d e f g │ h i      borders: positions where few values cross, all of them tensors
           own     engine    own      of the model's file

Collage (Jeon et al., PACT 2022) places libraries so on units and patterns. Here a region is long:
every border costs a call and, often, a change of layout, and engines fuse what they are given.
Regions are measured one by one, and in each engine the longest row of regions in which it is fast:
what that takes less than its regions, it saves at borders that it need not know.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, log
from typing import NamedTuple

from braid.core.graph import OpGraph
from braid.core.margins import PART_GAIN
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.problem import Problem

MOST_REGIONS = 6

LEAST_WORK = 0.08
"""Part of all work that each region has, at least: a small one pays for no border."""


BYTES_PER_US = 4e3
"""Speed at which a tensor changes its layout between own kernels and an engine, about."""

BORDER_US = 200.0
"""What a border takes beside that, about: a call, threads that wake up, fusions that are lost."""

EQUAL = 0.05
"""Gain of a cut between units of the same kind, as a part of the work on its smaller side."""

CALL_US = 30.0
"""What a call of an engine costs beside its work, about, where it is not measured."""

ONE_THREAD_US = 400.0
"""A region that takes longer on all threads is not tried on one."""

NEAR = 1.3
"""An engine that takes so much longer than the fastest of a region has no part in it, about."""


class Choice(NamedTuple):
    """Who runs a region."""

    engine: str  # of braid.core.runtimes; empty: own kernels
    threads: int


def plan_of_regions(problem: Problem) -> tuple[StreamPlan, tuple[Stage, ...]] | None:
    """Measure regions in each engine; None: no mixed plan is expected to be faster."""
    graph, threads, at = problem.graph, problem.facts.threads, problem.borders
    spans = regions(graph, at, problem.unit_latencies_us())
    if len(spans) < 2:
        return None
    wide = [Choice(engine, threads) for engine in problem.facts.engines]
    costs = _measured(problem, spans, [[Choice("", threads), *wide]] * len(spans))
    runs = {choice: run for choice in wide if (run := _near_run(costs, choice))}
    if not runs or not all(costs):
        return None
    one_thread = [_worth_one_thread(us) if threads > 1 else [] for us in costs]
    joined = [range(spans[run[0]].start, spans[run[-1]].stop) for run in runs.values()]
    beside = _measured(problem, [*spans, *joined], [*one_thread, *([choice] for choice in runs)])
    narrow, together = beside[: len(spans)], beside[len(spans) :]
    saved_us = {
        choice: max(0.0, sum(costs[at][choice] for at in run) - us[choice]) / (len(run) - 1)
        for (choice, run), us in zip(runs.items(), together, strict=True)
        if len(run) > 1 and choice in us
    }
    costs = [{**us, **others} for us, others in zip(costs, narrow, strict=True)]

    def price_us(region: int, before: Choice, after: Choice) -> float:
        if before == after:
            return -saved_us.get(after, CALL_US) if after.engine else 0.0
        is_own = not (before.engine and after.engine)
        return at[spans[region].start] / BYTES_PER_US if is_own else 0.0

    path, predicted_us = cheapest(costs, price_us)
    if len(set(path)) == 1 or predicted_us > (1 - PART_GAIN) * least_of_one(costs, price_us):
        return None
    runs_us = runs_of(spans, path, costs, price_us)
    parts = tuple(_part(problem, span, choice) for span, choice, _ in runs_us if choice.engine)
    launches = tuple(Launch(unit, 0) for unit in range(len(graph)))
    stages = tuple(Stage((tuple(span),), latency_us=us) for span, _, us in runs_us)
    return StreamPlan(launches, 1, parts=parts), stages


def _part(problem: Problem, span: range, choice: Choice) -> EnginePart:
    return problem.part(span, choice.engine, choice.threads)


def _measured(
    problem: Problem, spans: Sequence[range], choices: Sequence[Sequence[Choice]]
) -> list[dict[Choice, float]]:
    """Latencies in microseconds of each span by who runs it, without those refused."""
    asked = [(at, choice) for at, some in enumerate(choices) for choice in some]
    parts = [(_part(problem, spans[at], choice),) for at, choice in asked]
    costs: list[dict[Choice, float]] = [{} for _ in spans]
    for (at, choice), us in zip(asked, problem.parts_us(parts), strict=True):
        if us < inf:
            costs[at][choice] = us
    return costs


def _is_near(us: float, costs: Mapping[Choice, float]) -> bool:
    return us <= NEAR * min(costs.values())


def _worth_one_thread(costs: Mapping[Choice, float]) -> list[Choice]:
    """Engines on one thread that may be the fastest of a region, by costs on all threads."""
    if min(costs.values()) > ONE_THREAD_US:
        return []
    return [Choice(c.engine, 1) for c, us in costs.items() if c.engine and _is_near(us, costs)]


def _near_run(costs: Sequence[Mapping[Choice, float]], choice: Choice) -> range:
    """The longest row of regions in which an engine is near the fastest; may be empty."""
    longest, start = range(0), 0
    for at, us in enumerate(costs):
        if choice not in us or not _is_near(us[choice], us):
            start = at + 1
        longest = max(longest, range(start, at + 1), key=len)
    return longest


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

    def price_of_one(region: int, before: Choice, after: Choice) -> float:
        return price_us(region, before, after) if before == after else inf

    return cheapest(costs_us, price_of_one)[1]
