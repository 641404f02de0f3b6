"""Messages between a compilation and a planner process, one JSON object a line, in turns.

parent   PlanRequest                        first, once
child    LatencyQuestion                    any number of times
parent   Latencies                          in the order of the question
child    PlansFound, or PlanningError       last
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from braid.core.graph import OpGraph
from braid.core.json_form import from_json, to_tagged_json
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned

Ask = Literal["latency", "again", "work"]
"""A stage's latency; a fresh measurement of it; its latency on one thread."""


@dataclass(frozen=True, slots=True)
class StageQuery:
    """A stage whose latency a planner asks for."""

    signature: str  # equal for stages that are the same to the device
    stage: Stage
    ask: Ask = "latency"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Plan one static graph."""

    graph: OpGraph
    options: PlannerSettings
    facts: DeviceFacts


@dataclass(frozen=True, slots=True)
class LatencyQuestion:
    """Ask for the latencies of stages."""

    queries: tuple[StageQuery, ...]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of stages in microseconds."""

    latencies_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlansFound:
    """All plans that the planner offers."""

    planned: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class PlanningError:
    """Reason why there is no plan."""

    text: str


PlannerMessage = PlanRequest | LatencyQuestion | Latencies | PlansFound | PlanningError


def encode(message: PlannerMessage) -> bytes:
    return json.dumps(to_tagged_json(message)).encode() + b"\n"


def decode(line: bytes | str) -> PlannerMessage:
    """Read one line; both sides are part of Braid, so a malformed one is a bug."""
    message: PlannerMessage = from_json(PlannerMessage, json.loads(line))
    return message
