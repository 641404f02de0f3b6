"""One search over one static graph: which latencies it asks for, and the plans it ends with.

Synchronous, CPU-bound Python, which runs in a process of its own (planner_process.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs

from braid.compiler.planner_messages import Ask, StageQuery
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.scheduler.cost import Parts
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

    Asks for each latency at most once.
    """
    units = UnitGraph.from_graph(graph)
    cost = AskingCost(units, ask)
    bounded = settings.planner in ("lazy-ios", "portfolio")
    cost.ask_all(stages_to_measure(units, settings, facts), work=bounded)
    if bounded:
        facts = with_work(facts, cost, len(units))
    if settings.planner == "portfolio":
        return candidates(graph, cost, settings, facts)
    return [plan(units, cost, settings, facts)]


class AskingCost:
    """A cost of units, stages and parts that asks for each once."""

    def __init__(self, units: UnitGraph, ask: AskLatencies) -> None:
        self._units = units
        self._ask = ask
        self._latency_us: dict[tuple[str, Ask], float] = {}

    def stage_latency_us(self, stage: Stage) -> float:
        return self._known([self._query(stage)])[0]

    def work_us(self) -> list[float]:
        """Latency of each unit alone on one thread, in microseconds."""
        return self._known(self._alone())

    def ask_all(self, stages: Sequence[Stage], *, work: bool) -> None:
        """Ask for many stages at once, so that their number is known; ``work`` adds ``work_us``."""
        self._known([*map(self._query, stages), *(self._alone() if work else ())])

    def parts_us(self, stages: Sequence[Parts]) -> list[float]:
        """Latencies as ``PartsCost`` has them, named by what is computed and by whom."""
        queries = []
        for parts in stages:
            groups = tuple(dict.fromkeys(part.units for part in parts))
            query = self._query(Stage(groups), "parts")
            who = [f"{p.engine or 'own'} {p.version}@{p.threads}x{p.rows}" for p in parts]
            name = f"{query.signature} in {', '.join(who)}"
            queries.append(replace(query, signature=name, parts=parts))
        return self._known(queries)

    def _alone(self) -> list[StageQuery]:
        return [self._query(Stage(((unit,),)), "work") for unit in range(len(self._units))]

    def _query(self, stage: Stage, ask: Ask = "latency") -> StageQuery:
        return StageQuery(stage_signature(self._units, stage), stage, ask)

    def _known(self, queries: Sequence[StageQuery]) -> list[float]:
        keys = [(query.signature, query.ask) for query in queries]
        wanted = dict(zip(keys, queries, strict=True))
        missing = {key: query for key, query in wanted.items() if key not in self._latency_us}
        if missing:
            answers = self._ask(list(missing.values()))
            self._latency_us.update(zip(missing, answers, strict=True))
        return [self._latency_us[key] for key in keys]


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
