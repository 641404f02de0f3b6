"""The portfolio: every planner's plan, with and without barriers, as candidates for one model.

The engine measures the candidates as whole models, interleaved in one run, and serves the
fastest. The sequential plan is always the first candidate, and gives way only to what was measured
to be faster without doubt. Plans that are equal are offered once.
"""

from dataclasses import replace

from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.cost import StageCost
from braid.scheduler.lowering import lower_stages
from braid.scheduler.options import Join, PlannerSettings
from braid.scheduler.planners import Planned, plan
from braid.scheduler.problem import Problem
from braid.scheduler.registry import IN_PARTS
from braid.scheduler.stages import StageMemo
from braid.scheduler.units import UnitGraph, as_units

CONTENDERS = ("sequential", "greedy", "rammer", "lios", "opara", "nimble", "lazy-ios")
"""Sequential first. ``ios`` would find what ``lazy-ios`` finds and measure more for it."""

_WITHOUT_BARRIERS: tuple[Join, ...] = ("group", "unit")


def candidates(
    graph: OpGraph | UnitGraph,
    cost: StageCost,
    options: PlannerSettings,
    facts: DeviceFacts | None = None,
) -> list[Planned]:
    """Plans of all CONTENDERS under the limits of ``options``, and where there are engines those
    with parts in them.

    ``cost`` is asked for the same stage by several planners; give one that remembers.
    """
    units = as_units(graph)
    unit_us = [cost.stage_latency_us(Stage(((unit,),))) for unit in range(len(units))]
    by_plan: dict[StreamPlan, Planned] = {}
    for planner in CONTENDERS:
        entered = replace(options, planner=planner, join="stage")
        planned = plan(units, cost, entered, facts)
        _enter(by_plan, planned)
        if not planned.stages or planner == "sequential":
            continue
        for join in _WITHOUT_BARRIERS:
            lowered = lower_stages(
                planned.stages, units.predecessors, unit_us, options.max_streams, join
            )
            text = replace(entered, join=join).text
            # The search is that of the plan with barriers.
            _enter(by_plan, replace(planned, planner=text, plan=lowered, search_seconds=0.0))
    if isinstance(graph, OpGraph) and facts is not None and facts.engines:
        problem = Problem(units, StageMemo(cost), options, facts, graph)
        for name, planner_in_parts in IN_PARTS.items():
            if (found := planner_in_parts(problem)) is not None:
                plan_in_parts, stages = found
                predicted_us = sum(stage.latency_us or 0.0 for stage in stages)
                _enter(by_plan, Planned(name, plan_in_parts, stages, predicted_us))
    return list(by_plan.values())


def _enter(by_plan: dict[StreamPlan, Planned], new: Planned) -> None:
    entered = by_plan.setdefault(new.plan, new)
    if entered is not new:
        by_plan[new.plan] = replace(entered, also=(*entered.also, new.planner))
