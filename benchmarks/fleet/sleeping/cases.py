"""Cases that both the simulation and real servers run, and what each of them saw."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import median

from benchmarks.fleet.simulate.doors import LEAST_CONNECTIONS
from benchmarks.fleet.simulate.load import Arrivals, ClosedLoop, Load, OpenLoop
from benchmarks.fleet.simulate.nodes import Device
from benchmarks.fleet.simulate.scenario import Scenario, percentile_ms, simulate
from benchmarks.fleet.sleeping.door import LoggingDoor, Passed, logging_door
from benchmarks.fleet.sleeping.nodes import MODEL, WIDTH, sleeping_nodes
from benchmarks.load.arrivals import poisson
from benchmarks.load.processes import LoadGenerators
from benchmarks.load.records import Job
from tests.deploy.haproxy import Addresses

CONNECTIONS = 16
"""Connections of the open loop."""

SEED = 0
_CHECKED_S = 2.0  # until HAProxy has asked every node whether it is ready


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes by their slowness, and HAProxy's weights for them."""

    slowness: tuple[float, ...]
    is_weighted: bool = False

    @property
    def weights(self) -> list[int]:
        """Weight of each node, in proportion to its speed."""
        slowest = max(self.slowness)
        return [round(slowest / slowness) if self.is_weighted else 10 for slowness in self.slowness]


@dataclass(frozen=True, slots=True)
class Case:
    """Load on a fleet, in seconds."""

    name: str
    load: Load
    warmup_s: float = 3.0
    measure_s: float = 12.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What clients saw, and those whose requests one of the slowest nodes answered."""

    per_s: float
    p50_ms: float
    p99_ms: float
    slow_p99_ms: float
    failed: int


def usual_cases(fleet: Fleet, batch_us: Mapping[int, float]) -> list[Case]:
    """Closed loops that do and do not fill the batches, and open loops."""
    nodes, ideal = len(fleet.slowness), ideal_per_s(fleet, batch_us)
    return [
        Case("closed, 4 a node", ClosedLoop(4 * nodes)),
        Case("closed, 16 a node", ClosedLoop(16 * nodes)),
        Case("open, 0.6", OpenLoop(((0.0, 0.6 * ideal),)), measure_s=20.0),
        Case("open, 0.8", OpenLoop(((0.0, 0.8 * ideal),)), measure_s=20.0),
    ]


def mixed_cases(fleet: Fleet, batch_us: Mapping[int, float]) -> list[Case]:
    """As many clients as three of the largest batches on each node, and an open loop."""
    clients, ideal = 3 * max(batch_us) * len(fleet.slowness), ideal_per_s(fleet, batch_us)
    return [
        Case(f"closed, {clients}", ClosedLoop(clients), 10.0, 30.0),
        Case("open, 0.8", OpenLoop(((0.0, 0.8 * ideal),)), 10.0, 40.0),
    ]


def ideal_per_s(fleet: Fleet, batch_us: Mapping[int, float]) -> float:
    return sum(Device(batch_us, slowness).rows_per_s for slowness in fleet.slowness)


def simulated(fleet: Fleet, batch_us: Mapping[int, float], case: Case, way_s: float) -> LoadResult:
    """Run a case in the simulation; requests of an open loop begin when the real ones do."""
    scenario = Scenario(
        batch_us=batch_us,
        slowness=fleet.slowness,
        load=_same_moments(case),
        policy=replace(LEAST_CONNECTIONS, is_weighted=fleet.is_weighted),
        way_s=way_s,
        warmup_s=case.warmup_s,
        measure_s=case.measure_s,
    )
    report = simulate(scenario)
    seconds = case.measure_s
    if isinstance(case.load, ClosedLoop):
        seconds = max(at for at, _ in report.finished) - case.warmup_s
    slowest = max(fleet.slowness)
    return LoadResult(
        per_s=len(report.finished) / seconds,
        p50_ms=report.p50_ms,
        p99_ms=report.p99_ms,
        slow_p99_ms=max(node.p99_ms for node in report.nodes if node.slowness == slowest),
        failed=report.sent - report.outcomes["OK"],
    )


def _same_moments(case: Case) -> Load:
    if not isinstance(case.load, OpenLoop):
        return case.load
    moments = poisson(case.load.rate_at(0.0)[0], SEED)
    return Arrivals(tuple(takewhile(lambda at: at < case.warmup_s + case.measure_s, moments)))


def real(
    fleet: Fleet,
    batch_us: Mapping[int, float],
    cases: Sequence[Case],
    folder: Path,
    generators: LoadGenerators,
) -> tuple[float, list[LoadResult]]:
    """Run cases on real servers behind HAProxy.

    Returns the seconds of a lone request beside its device's, and what was seen in each case.
    """
    tables = [{rows: us * slow for rows, us in batch_us.items()} for slow in fleet.slowness]
    folder.mkdir()
    with sleeping_nodes(folder, tables) as nodes:
        addresses = [Addresses(node.address, node.http_address) for node in nodes]
        with logging_door(folder / "door", addresses, fleet.weights) as door:
            time.sleep(_CHECKED_S)
            way_s = _way_s(door, tables, generators)
            return way_s, [_run(door, case, fleet, generators) for case in cases]


def _way_s(
    door: LoggingDoor, tables: Sequence[Mapping[int, float]], generators: LoadGenerators
) -> float:
    """Return the seconds of a lone request beside those of its device."""
    generators.run(_job(door, Case("lone", ClosedLoop(1), 1.0, 5.0)))
    lone = [call.whole_ms / 1e3 - tables[call.node - 1][1] / 1e6 for call in door.passed()]
    return max(0.0, median(lone))


def _job(door: LoggingDoor, case: Case) -> Job:
    load = case.load
    return Job(
        clients=load.clients if isinstance(load, ClosedLoop) else CONNECTIONS,
        rate_per_s=load.rate_at(0.0)[0] if isinstance(load, OpenLoop) else None,
        warmup_s=case.warmup_s,
        measure_s=case.measure_s,
        address=door.address,
        model=MODEL,
        scale=1.0,
        shape=(1, WIDTH),
        seed=SEED,
    )


def _run(door: LoggingDoor, case: Case, fleet: Fleet, generators: LoadGenerators) -> LoadResult:
    door.passed()
    begin = time.time() + case.warmup_s
    samples = generators.run(_job(door, case))
    time.sleep(0.2)  # the log is written
    passed = [call for call in door.passed() if call.began >= begin]
    latencies_s = [us / 1e6 for us in samples.latency_us]
    return LoadResult(
        per_s=len(latencies_s) / samples.seconds,
        p50_ms=percentile_ms(latencies_s, 0.5),
        p99_ms=percentile_ms(latencies_s, 0.99),
        slow_p99_ms=_slow_p99_ms(passed, fleet),
        failed=sum(samples.errors.values()),
    )


def _slow_p99_ms(passed: Sequence[Passed], fleet: Fleet) -> float:
    """Return the greatest p99 of a slowest node's requests, as HAProxy timed them."""
    slowest = max(fleet.slowness)
    slow = [number for number, call in enumerate(fleet.slowness, start=1) if call == slowest]
    return max(
        percentile_ms([call.whole_ms / 1e3 for call in passed if call.node == node], 0.99)
        for node in slow
    )
