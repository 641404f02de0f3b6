"""Messages between a compilation and a planner process, one JSON object a line, in turns.

parent   PlanRequest                        first, once
child    LatencyQuestion                    any number of times
parent   Latencies                          in the order of the question
child    PlansFound, or PlanningError       last
"""

import json
from dataclasses import dataclass
from typing import Literal

from braid.core.graph import OpGraph
from braid.core.json_form import Tagged, from_json, to_json
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.scheduler.cost import Parts
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned

Ask = Literal["latency", "work", "parts"]
"""A stage's latency; its latency on one thread, and in ``parts``."""


@dataclass(frozen=True, slots=True)
class StageQuery:
    """A stage whose latency a planner asks for."""

    signature: str  # equal for stages that are the same to the device
    stage: Stage
    ask: Ask = "latency"
    parts: Parts = ()


class PlanRequest(Tagged, frozen=True):
    """Plan one static graph."""

    graph: OpGraph
    options: PlannerSettings
    facts: DeviceFacts


class LatencyQuestion(Tagged, frozen=True):
    """Ask for the latencies of stages."""

    queries: tuple[StageQuery, ...]


class Latencies(Tagged, frozen=True):
    """Latencies of stages in microseconds."""

    latencies_us: tuple[float, ...]


class PlansFound(Tagged, frozen=True):
    """All plans that the planner offers."""

    planned: tuple[Planned, ...]


class PlanningError(Tagged, frozen=True):
    """Reason why there is no plan."""

    text: str


PlannerMessage = PlanRequest | LatencyQuestion | Latencies | PlansFound | PlanningError


def encode(message: PlannerMessage) -> bytes:
    return json.dumps(to_json(message)).encode() + b"\n"


def decode(line: bytes | str) -> PlannerMessage:
    """Read one line; both sides are part of Braid, so a malformed one is a bug."""
    message: PlannerMessage = from_json(PlannerMessage, json.loads(line))
    return message
