"""Contests whose candidates are given, whatever a comparison on this machine would have found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import SEQUENTIAL, ContestRow, PlanCandidate
from braid.server.store.store import Store

PLANS = (OPENVINO, ONNXRUNTIME, SEQUENTIAL)


def let_compete(
    folder: Path,
    *plans: str,
    is_decided: bool = False,
    name: str | None = None,
    kind: type[Store] = Store,
    **more: Any,
) -> None:
    """Give stored schedules these candidates; no server has the folder of the store open."""
    store, first_us = kind.open(folder, **more), 90.0 if is_decided else 100.0
    try:
        for model in store.models(name):
            for schedule in store.schedules_of(model.sha256):
                plan = sequential_plan(len(schedule.unit_names))
                first, *others = (
                    PlanCandidate(plan_name, plan, latency_us=100.0) for plan_name in plans or PLANS
                )
                decision = tuple(
                    ContestRow(each, 53, at, at - 0.1, at + 0.1, latency_us=200.0 * at)
                    for at, each in enumerate(plans or PLANS, 1)
                    if is_decided
                )
                seen = replace(schedule.provenance, promoted=True, measured_us=first_us)
                seen = replace(seen, is_decided=is_decided, decision=decision)
                led = replace(schedule, planner=first.name, plan=plan, stages=(), provenance=seen)
                store.put_schedule(replace(led, others=tuple(others)))
    finally:
        store.close()
