"""The plans of a run, in one file beside its results, for a later run that goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reports import replace_text

FILE = "cuda_plans.json"


@dataclass(frozen=True, slots=True)
class Planned:
    """What was found for one network at one batch size."""

    plans: Mapping[str, Path]  # by name
    choices: Mapping[str, str]  # kernel signature -> variant, where it is not the usual one


PlanFiles = dict[tuple[str, int], Planned]
"""By network and batch size."""


def write_plans(plans: PlanFiles, folder: Path) -> None:
    document = [
        {
            "network": network,
            "batch": batch,
            "plans": {name: json.loads(path.read_text()) for name, path in planned.plans.items()},
            "choices": dict(planned.choices),
        }
        for (network, batch), planned in plans.items()
    ]
    replace_text(folder / FILE, json.dumps(document) + "\n")


def read_plans(folder: Path, work: Path) -> PlanFiles:
    """The plans of an earlier run, as files in ``work``; none if it left none."""
    by_case: PlanFiles = {}
    if not (folder / FILE).exists():
        return by_case
    for document in json.loads((folder / FILE).read_text()):
        case = document["network"], document["batch"]
        plans: dict[str, Path] = {}
        for number, (name, plan) in enumerate(document["plans"].items()):
            path = work / f"{case[0]}-{case[1]}-earlier-{number}.json"
            path.write_text(json.dumps(plan))
            plans[name] = path
        by_case[case] = Planned(plans, document["choices"])
    return by_case
