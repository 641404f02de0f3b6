"""The portfolio: every planner's plan, with and without barriers, as candidates for one model.

The engine measures the candidates as whole models, interleaved in one run, and serves the
fastest. The sequential plan is always the first candidate, so a model is never served slower
than sequential. Plans that are equal are offered once.

    candidates(...) ──> [Candidate, ...] ──whole-model measurement──> the fastest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid.core.graph import OpGraph
from braid.core.plan import StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.cost import DeviceFacts, StageCost
from braid.scheduler.lowering import lower_stages
from braid.scheduler.options import Join, PlannerOptions
from braid.scheduler.planners import Planned, plan
from braid.scheduler.units import UnitGraph, as_units

CONTENDERS = ("sequential", "greedy", "rammer", "lios", "opara", "nimble", "lazy-ios")
"""Planners that enter; ``ios`` would find what ``lazy-ios`` finds and measure more for it."""

_WITHOUT_BARRIERS: tuple[Join, ...] = ("group", "unit")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan that could be served."""

    options: PlannerOptions  # that give this plan
    planned: Planned
    also: tuple[PlannerOptions, ...] = ()  # others that give the same plan


def candidates(
    graph: OpGraph | UnitGraph,
    cost: StageCost,
    options: PlannerOptions,
    facts: DeviceFacts | None = None,
    contenders: Sequence[str] = CONTENDERS,
) -> list[Candidate]:
    """Plans of all contenders under the limits of ``options``, the sequential one first.

    ``cost`` is asked for the same stage by several planners; give one that remembers.
    """
    units = as_units(graph)
    unit_us = [cost.stage_latency_us(Stage(((unit,),))) for unit in range(len(units))]
    found: dict[StreamPlan, Candidate] = {}
    for planner in dict.fromkeys(("sequential", *contenders)):
        entered = replace(options, planner=planner, join="stage")
        planned = plan(units, cost, entered, facts)
        _enter(found, Candidate(entered, planned))
        if not planned.stages or planner == "sequential":
            continue
        for join in _WITHOUT_BARRIERS:
            lowered = lower_stages(
                planned.stages, units.predecessors, unit_us, options.max_streams, join
            )
            joined = replace(entered, join=join)
            # The search is that of the plan with barriers.
            _enter(found, Candidate(joined, replace(planned, plan=lowered, search_seconds=0.0)))
    return list(found.values())


def _enter(found: dict[StreamPlan, Candidate], new: Candidate) -> None:
    """Take a candidate, or note that its plan is known."""
    plan = new.planned.plan
    known = found.setdefault(plan, new)
    if known is not new:
        found[plan] = replace(known, also=(*known.also, new.options))
