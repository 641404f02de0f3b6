"""One case of a simulated fleet, from its parts to its report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import exp, inf, nan
from typing import Any

from benchmarks.fleet.simulate.autoscaling import Autoscaler, Autoscaling
from benchmarks.fleet.simulate.doors import LEAST_CONNECTIONS, Door, DoorPolicy
from benchmarks.fleet.simulate.failures import Failures, fail
from benchmarks.fleet.simulate.load import OK, Clients, Load, Tally
from benchmarks.fleet.simulate.nodes import Device, Node
from benchmarks.fleet.simulate.virtual_time import run as run_virtually
from braid.server.store.serving_config import BatchPolicy

Noise = Callable[[random.Random], float]
"""Draws the factor on the latency of one batch; its mean is 1."""


def no_noise(chance: random.Random) -> float:
    """Return 1: each batch takes its latency exactly."""
    return 1.0


def exponential(chance: random.Random) -> float:
    return chance.expovariate(1.0)


def lognormal(chance: random.Random, sigma: float = 0.1) -> float:
    return chance.lognormvariate(0.0, sigma) / exp(sigma * sigma / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Fleet, its door and its load; times in seconds."""

    batch_us: Mapping[int, float]  # latencies of the fastest node's batches, by rows
    slowness: tuple[float, ...] = (1.0,)  # of each node, relative to that
    load: Load
    policy: DoorPolicy = LEAST_CONNECTIONS
    doors: int = 1
    batching: BatchPolicy = field(default_factory=BatchPolicy)
    noise: Noise = no_noise
    failures: Failures | None = None
    autoscaling: Autoscaling | None = None
    way_s: float = 0.0
    timeout_s: float = inf
    warmup_s: float = 5.0
    measure_s: float = 20.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What one node did."""

    slowness: float
    answers: int
    utilisation: float  # share of the measured time in which its device ran a batch
    mean_rows: float  # of a batch
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Report:
    """What clients and nodes saw."""

    ideal_per_s: float  # rows that all devices together can compute in a second
    answers_per_s: float
    p50_ms: float
    p99_ms: float
    sent: int
    outcomes: dict[str, int]
    nodes: tuple[NodeReport, ...]
    finished: tuple[tuple[float, float], ...]  # (second, latency in seconds) of each answer
    sizes: tuple[tuple[float, int], ...]  # (second, nodes), of a fleet that is scaled

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        del facts["finished"]
        return facts


def simulate(scenario: Scenario) -> Report:
    """Run a scenario; the same scenario has the same report."""
    return run_virtually(_run(scenario))


async def _run(scenario: Scenario) -> Report:
    chances = [random.Random(f"{scenario.seed} {what}") for what in ("load", "door", "fail")]

    def make(number: int) -> Node:
        slowness = scenario.slowness[number % len(scenario.slowness)]
        chance = random.Random(f"{scenario.seed} node {number}")
        device = Device(scenario.batch_us, slowness, lambda: scenario.noise(chance))
        return Node(number, device, scenario.batching)

    nodes = [make(number) for number in range(len(scenario.slowness))]
    doors = [Door(scenario.policy, nodes, chances[1]) for _ in range(scenario.doors)]

    def look() -> None:
        for door in doors:
            door.look()

    tally = Tally(scenario.warmup_s, scenario.warmup_s + scenario.measure_s)
    others: list[asyncio.Task[None]] = []
    if scenario.failures is not None:
        others.append(asyncio.create_task(fail(scenario.failures, nodes, chances[2], look)))
    scaler = None
    if scenario.autoscaling is not None:
        scaler = Autoscaler(scenario.autoscaling, nodes, make, look)
        others.append(asyncio.create_task(scaler.run()))
    busy = asyncio.create_task(_busy_within(nodes, tally))
    clients = Clients(doors, chances[0], tally, scenario.way_s, scenario.timeout_s)
    await clients.send(scenario.load)
    busy_s = await busy
    for other in others:
        other.cancel()
    return _report(scenario, nodes, tally, busy_s, scaler)


async def _busy_within(nodes: list[Node], tally: Tally) -> dict[Node, float]:
    """Return the seconds of batches of each node that ended while it was measured."""
    await asyncio.sleep(tally.begin)
    before = {node: node.busy_s for node in nodes}
    await asyncio.sleep(tally.end - tally.begin)
    return {node: node.busy_s - before.get(node, 0.0) for node in nodes}


def _report(
    scenario: Scenario,
    nodes: list[Node],
    tally: Tally,
    busy_s: dict[Node, float],
    scaler: Autoscaler | None,
) -> Report:
    return Report(
        ideal_per_s=sum(node.device.rows_per_s for node in nodes),
        answers_per_s=tally.answers / scenario.measure_s,
        p50_ms=percentile_ms(tally.latencies_s, 0.5),
        p99_ms=percentile_ms(tally.latencies_s, 0.99),
        sent=tally.sent,
        outcomes={OK: 0, **tally.outcomes},
        nodes=tuple(
            NodeReport(
                slowness=node.device.slowness,
                answers=len(node.latencies_s),
                utilisation=busy_s.get(node, 0.0) / scenario.measure_s,
                mean_rows=node.mean_rows,
                p50_ms=percentile_ms(node.latencies_s, 0.5),
                p99_ms=percentile_ms(node.latencies_s, 0.99),
            )
            for node in nodes
        ),
        finished=tuple(tally.finished),
        sizes=tuple(scaler.sizes) if scaler is not None else (),
    )


def percentile_ms(latencies_s: list[float], share: float) -> float:
    if not latencies_s:
        return nan
    ordered = sorted(latencies_s)
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
