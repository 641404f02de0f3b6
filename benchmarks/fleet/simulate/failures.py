"""Nodes of a simulated fleet that die and come back, at random moments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.fleet.simulate.nodes import Node


@dataclass(frozen=True, slots=True)
class Failures:
    """How often nodes die, and for how long."""

    mean_between_s: float  # of the whole fleet, exponential
    away_s: float  # until the node takes requests again
    kills: int = 0  # stop after so many; 0: never


async def fail(
    failures: Failures, nodes: Sequence[Node], chance: random.Random, look: Callable[[], None]
) -> None:
    """Kill nodes that are up, and start them again; ``look`` is called after each change."""
    now, killed = asyncio.get_running_loop(), 0

    def back(node: Node) -> None:
        node.come_back()
        look()

    while not failures.kills or killed < failures.kills:
        await asyncio.sleep(chance.expovariate(1 / failures.mean_between_s))
        if up := [node for node in nodes if node.takes_requests]:
            node = chance.choice(up)
            node.kill()
            killed += 1
            look()
            now.call_later(failures.away_s, back, node)
