"""One search over one static graph: which latencies it asks for, and the plans it ends with.

Synchronous, CPU-bound Python. It runs in a process of its own (planner_process.py), or in a thread
of the bench that measures what it asks for (process.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from braid.compiler.planner_messages import Ask, StageQuery
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned, plan, stages_to_measure
from braid.scheduler.portfolio import candidates
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph

AskLatencies = Callable[[Sequence[StageQuery]], Sequence[float]]
"""Answers with the latencies in microseconds, in the order of the queries."""


def find_plans(
    graph: OpGraph, settings: PlannerSettings, facts: DeviceFacts, ask: AskLatencies
) -> list[Planned]:
    """Plan a static graph; the portfolio returns all different plans.

    Asks for each latency at most once, but for fresh ones.
    """
    units = UnitGraph.from_graph(graph)
    cost = AskingCost(units, ask)
    bounded = settings.planner in ("lazy-ios", "portfolio")
    cost.ask_all(stages_to_measure(units, settings, facts), work=bounded)
    if bounded:
        facts = with_work(facts, cost, len(units))
    if settings.planner == "portfolio":
        return candidates(units, cost, settings, facts)
    return [plan(units, cost, settings, facts)]


class AskingCost:
    """A RepeatableCost that asks for each signature once, unless told to ask again."""

    def __init__(self, units: UnitGraph, ask: AskLatencies) -> None:
        self._units = units
        self._ask = ask
        self._latency_us: dict[tuple[str, Ask], float] = {}

    def stage_latency_us(self, stage: Stage) -> float:
        return self._known([stage], "latency")[0]

    def measure_again_us(self, stage: Stage) -> float:
        (latency,) = self._ask([StageQuery(stage_signature(self._units, stage), stage, "again")])
        return latency

    def work_us(self) -> list[float]:
        """Latency of each unit alone on one thread, in microseconds."""
        return self._known(self._alone(), "work")

    def ask_all(self, stages: Sequence[Stage], *, work: bool) -> None:
        """Ask for many stages at once, so that their number is known; ``work`` adds ``work_us``."""
        wanted = self._named(stages, "latency")
        if work:
            wanted |= self._named(self._alone(), "work")
        self._learn(wanted)

    def _alone(self) -> list[Stage]:
        return [Stage(((unit,),)) for unit in range(len(self._units))]

    def _named(self, stages: Sequence[Stage], ask: Ask) -> dict[tuple[str, Ask], Stage]:
        return {(stage_signature(self._units, stage), ask): stage for stage in stages}

    def _known(self, stages: Sequence[Stage], ask: Ask) -> list[float]:
        keys: list[tuple[str, Ask]]
        keys = [(stage_signature(self._units, stage), ask) for stage in stages]
        wanted = dict(zip(keys, stages, strict=True))
        self._learn({key: stage for key, stage in wanted.items() if key not in self._latency_us})
        return [self._latency_us[key] for key in keys]

    def _learn(self, wanted: Mapping[tuple[str, Ask], Stage]) -> None:
        if wanted:
            latencies = self._ask(
                [StageQuery(name, stage, ask) for (name, ask), stage in wanted.items()]
            )
            self._latency_us.update(zip(wanted, latencies, strict=True))


def with_work(facts: DeviceFacts, cost: AskingCost, units: int) -> DeviceFacts:
    """Facts with the time for which each unit occupies the whole device, at least.

    On one thread a unit occupies one of the threads; if caches make all of them more than that
    many times as fast, the latency on all of them counts. Neither contains the price of a stage.
    """
    price_us = facts.overheads.stage_us if facts.overheads else 0.0
    alone_us = [cost.stage_latency_us(Stage(((unit,),))) for unit in range(units)]
    profiles = tuple(
        replace(profile, work_us=(max(0.0, min(work / facts.threads, alone) - price_us),))
        for profile, work, alone in zip(facts.profiles, cost.work_us(), alone_us, strict=True)
    )
    return structs.replace(facts, profiles=profiles)
