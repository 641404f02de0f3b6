"""Stored schedules as tests want them, whatever a comparison on this machine would have found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import SEQUENTIAL, ContestRow, PlanCandidate, Schedule
from braid.server.store.store import Store

PLANS = (OPENVINO, ONNXRUNTIME, SEQUENTIAL)


def change_schedules(
    folder: Path,
    change: Callable[[Schedule], Schedule],
    name: str | None = None,
    kind: type[Store] = Store,
    **more: Any,
) -> None:
    """Change the stored schedules of all models, or one; no server has the folder open."""
    store = kind.open(folder, **more)
    try:
        for model in store.models(name):
            for schedule in store.schedules_of(model.sha256):
                store.put_schedule(change(schedule))
    finally:
        store.close()


def let_compete(folder: Path, *plans: str, is_decided: bool = False, **more: Any) -> None:
    """Give stored schedules these candidates; ``more`` as for ``change_schedules``."""

    def with_candidates(schedule: Schedule) -> Schedule:
        plan = sequential_plan(len(schedule.unit_names))
        first, *others = (PlanCandidate(each, plan, latency_us=100.0) for each in plans or PLANS)
        decision = tuple(
            ContestRow(each, 53, at, at - 0.1, at + 0.1, latency_us=200.0 * at)
            for at, each in enumerate(plans or PLANS, 1)
            if is_decided
        )
        seen = replace(
            schedule.provenance, promoted=True, measured_us=90.0 if is_decided else 100.0
        )
        seen = replace(seen, is_decided=is_decided, decision=decision)
        led = replace(schedule, planner=first.name, plan=plan, stages=(), provenance=seen)
        return replace(led, others=tuple(others))

    change_schedules(folder, with_candidates, **more)
