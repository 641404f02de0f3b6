"""Cases of docs/fleet-size.md: what grows with the nodes, what a door costs, what failures cost.

All nodes serve one network by the latency table of its stored schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fleet.simulate.autoscaling import Autoscaling
from benchmarks.fleet.simulate.doors import (
    EXPECTED_LATENCY,
    LEAST_CONNECTIONS,
    ROUND_ROBIN,
    TWO_CHOICES,
)
from benchmarks.fleet.simulate.failures import Failures
from benchmarks.fleet.simulate.load import OpenLoop
from benchmarks.fleet.simulate.nodes import Device
from benchmarks.fleet.simulate.scenario import Report, Scenario, lognormal, simulate

SIZES = (1, 3, 6, 25, 100)
USES = (0.3, 0.6, 0.8, 0.9)
DOORS = (1, 5, 25, 100)
MIX = (1.0, 1.0, 10.0)
TOLD_S = (0.2, 1.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """Latencies of every node's batches in microseconds, by rows, and the size of a case."""

    batch_us: Mapping[int, float]
    requests: int = 5000  # of one case, so that a p99 rests on fifty of them
    most: int = 100  # nodes of the largest fleet


@dataclass(frozen=True, slots=True)
class Point:
    """One case of a study: its place on a curve, and what was seen."""

    study: str
    curve: str
    x: float
    report: Report

    def to_json(self) -> dict[str, Any]:
        facts = self.report.to_json()
        nodes = facts.pop("nodes")
        facts["utilisation"] = [round(node["utilisation"], 4) for node in nodes]
        return {"study": self.study, "curve": self.curve, "x": self.x, **facts}


def base(setup: Setup, slowness: tuple[float, ...], use: float) -> Scenario:
    """Open loop at a share of what all devices together can compute."""
    rate = use * sum(Device(setup.batch_us, slow).rows_per_s for slow in slowness)
    return Scenario(
        batch_us=setup.batch_us,
        slowness=slowness,
        load=OpenLoop(((0.0, rate),)),
        noise=lognormal,
        warmup_s=1.0,
        measure_s=min(max(3.0, setup.requests / rate), 300.0),
    )


def by_size(setup: Setup) -> Iterator[Point]:
    """The p99 of equal nodes at 0.8 of their throughput, by their number and the door."""
    for policy in (ROUND_ROBIN, TWO_CHOICES, LEAST_CONNECTIONS):
        for size in [size for size in SIZES if size <= setup.most]:
            scenario = replace(base(setup, (1.0,) * size, 0.8), policy=policy)
            yield Point("size", policy.name, size, simulate(scenario))


def by_use(setup: Setup) -> Iterator[Point]:
    """The p99 behind least connections, by utilisation and the number of nodes."""
    for size in (1, 6, setup.most):
        for use in USES:
            report = simulate(base(setup, (1.0,) * size, use))
            yield Point("use", f"{size} nodes" if size > 1 else "1 node", use, report)


def by_doors(setup: Setup) -> Iterator[Point]:
    """The p99 of the most equal nodes at 0.8, by the doors that do not know of each other."""
    for policy in (ROUND_ROBIN, TWO_CHOICES, LEAST_CONNECTIONS):
        for doors in [doors for doors in DOORS if doors <= setup.most]:
            scenario = replace(base(setup, (1.0,) * setup.most, 0.8), policy=policy, doors=doors)
            yield Point("doors", policy.name, doors, simulate(scenario))


def by_news(setup: Setup) -> Iterator[Point]:
    """The p99 of the most equal nodes at 0.8 by expected latency, by the age of what they told."""
    for choices in (None, 2):
        name = "all nodes compared" if choices is None else "two random ones compared"
        for told_s in TOLD_S:
            policy = replace(EXPECTED_LATENCY, told_every_s=told_s, choices=choices)
            scenario = replace(base(setup, (1.0,) * setup.most, 0.8), policy=policy)
            yield Point("news", name, told_s, simulate(scenario))


def mixed_speeds(setup: Setup) -> Iterator[Point]:
    """The p99 of 6 nodes of latencies 1:1:10, by utilisation and the door."""
    weighted = replace(LEAST_CONNECTIONS, name="least connections, weights", is_weighted=True)
    policies = (ROUND_ROBIN, TWO_CHOICES, LEAST_CONNECTIONS, weighted, EXPECTED_LATENCY)
    for policy in policies:
        for use in USES:
            scenario = replace(base(setup, MIX * 2, use), policy=policy)
            yield Point("mixed", policy.name, use, simulate(scenario))


def with_failures(setup: Setup) -> Iterator[Point]:
    """Share of failed requests, while a node dies each 5 s and is away for 20 s, by size."""
    for size in (6, 25):
        scenario = replace(
            base(setup, (1.0,) * size, 0.6), failures=Failures(5.0, 20.0), measure_s=20.0
        )
        yield Point("failures", "0.6 of all nodes", size, simulate(scenario))


def with_autoscaling(setup: Setup) -> Iterator[Point]:
    """Load of 2 nodes that becomes the load of 8 after a minute, by the time that a node starts."""
    one = Device(setup.batch_us).rows_per_s
    load = OpenLoop(((0.0, 1.4 * one), (60.0, 5.6 * one), (150.0, 1.4 * one)))
    for start_s in (20.0, 60.0):
        scenario = replace(
            base(setup, (1.0, 1.0), 0.7),
            load=load,
            autoscaling=Autoscaling(2, 12, start_s=start_s, down_after_s=60.0),
            warmup_s=0.0,
            measure_s=300.0,
        )
        yield Point("autoscaling", f"a node starts in {start_s:.0f} s", start_s, simulate(scenario))


Study = Callable[[Setup], Iterator[Point]]

STUDIES: dict[str, Study] = {
    "size": by_size,
    "use": by_use,
    "doors": by_doors,
    "news": by_news,
    "mixed": mixed_speeds,
    "failures": with_failures,
    "autoscaling": with_autoscaling,
}
