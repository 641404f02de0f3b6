"""Compares the planners on synthetic devices: latency, stages measured, search time.

    python -m benchmarks.planners --out benchmarks/results/local/planners

prints tables and writes ``planners.json``. No hardware is involved: the devices are those of
``benchmarks/synthetic.py``. GoogLeNet, ResNet-50 and BERT are always there; the graphs of the IOS
authors (SqueezeNet, Inception V3, RandWire, NASNet-A) are read from ``--graphs``, and ``--graph
FILE`` adds the static graph of an imported model.

How to read the columns:

    latency    the whole model; of a planner with stages, under the fastest of its lowerings (with
               barriers, or without, by group or by unit), as the portfolio would choose it
    / ios      that, relative to ``ios``
    measured   stages measured, and the share of those that ``ios`` measures
    off        predicted latency above the optimum (stage planners; the sum of stage latencies)
    search     CPU seconds without measuring
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

from benchmarks.environment import describe
from benchmarks.reports import parser_of, write_report
from benchmarks.structures import (
    PAPER_GRAPHS,
    Structure,
    bert_base,
    googlenet,
    imported_graph,
    paper_graph,
    resnet50,
)
from benchmarks.synthetic import DEVICES, DeviceModel, SyntheticDevice
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.scheduler.lowering import lower_stages
from braid.scheduler.options import JOINS, PlannerSettings
from braid.scheduler.planners import Planned, plan
from braid.scheduler.units import UnitGraph

CONTENDERS = (
    PlannerSettings("ios"),
    PlannerSettings("lazy-ios"),
    PlannerSettings("lazy-ios", gap=0.01),
    PlannerSettings("sequential"),
    PlannerSettings("greedy"),
    PlannerSettings("rammer"),
    PlannerSettings("lios"),
    PlannerSettings("opara"),
    PlannerSettings("nimble"),
)
OURS = ("ios", "lazy-ios", "lazy-ios 1%")
PAPER_NETWORKS = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large")
CLOSE = 1e-6
"""Relative; latencies this close are equal."""


@dataclass(slots=True)
class TimedCost:
    """A device that keeps the CPU time it takes, so that it can be taken off the search's."""

    device: SyntheticDevice
    seconds: float = 0.0

    def stage_latency_us(self, stage: Stage) -> float:
        started = time.process_time()
        latency = self.device.stage_latency_us(stage)
        self.seconds += time.process_time() - started
        return latency


@dataclass(frozen=True, slots=True)
class Result:
    """One planner on one device with one seed."""

    network: str
    device: str
    seed: int
    planner: str
    latency_us: float
    predicted_us: float
    join: str
    stages_measured: int
    search_seconds: float
    gap: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """All results, as ``planners.json`` holds them."""

    environment: dict[str, object]
    devices: dict[str, dict[str, object]]
    results: list[Result] = field(default_factory=list)


def run(structure: Structure, model: DeviceModel, seed: int) -> Iterator[Result]:
    device = SyntheticDevice(model, structure.units, structure.loads, seed)
    for options in CONTENDERS:
        cost = TimedCost(device)
        started = time.process_time()
        planned = plan(structure.units, cost, options, device.facts)
        seconds = time.process_time() - started - cost.seconds
        latency_us, join = _served(structure, device, options, planned)
        yield Result(
            network=structure.name,
            device=model.name,
            seed=seed,
            planner=_name(options),
            latency_us=latency_us,
            predicted_us=planned.predicted_us or 0.0,
            join=join,
            stages_measured=planned.counts.stages_measured,
            search_seconds=seconds,
            gap=planned.gap,
        )


def _served(
    structure: Structure, device: SyntheticDevice, options: PlannerSettings, planned: Planned
) -> tuple[float, str]:
    """Latency of the whole model under the fastest lowering, and which one that is."""
    if not planned.stages or options.planner == "sequential":
        return device.plan_latency_us(planned.plan), ""
    predecessors, streams = structure.units.predecessors, options.max_streams
    units = range(len(structure.units))
    alone_us = [device.stage_latency_us(Stage(((unit,),))) for unit in units]
    measured: list[tuple[float, str]] = []
    for join in JOINS:
        lowered = lower_stages(planned.stages, predecessors, alone_us, streams, join)
        measured.append((device.plan_latency_us(lowered), join))
    return min(measured)


def _name(options: PlannerSettings) -> str:
    return f"{options.planner} {options.gap:.0%}" if options.gap else options.planner


def print_table(results: Sequence[Result]) -> None:
    ios = {(r.device, r.seed): r for r in results if r.planner == "ios"}
    sequential = {(r.device, r.seed): r for r in results if r.planner == "sequential"}
    print(f"\n{results[0].network}: mean of {len(ios)} devices and seeds")
    print(
        f"{'planner':12} {'latency us':>10} {'speed-up':>8} {'/ ios':>7} {'measured':>9} "
        f"{'share':>7} {'off':>8} {'search s':>8}"
    )
    for planner in dict.fromkeys(r.planner for r in results):
        rows = [(r, ios[r.device, r.seed]) for r in results if r.planner == planner]
        speedups = [sequential[r.device, r.seed].latency_us / r.latency_us for r, _ in rows]
        print(
            f"{planner:12}"
            f" {fmean(r.latency_us for r, _ in rows):10.0f}"
            f" {fmean(speedups):8.2f}"
            f" {fmean(r.latency_us / best.latency_us for r, best in rows):7.4f}"
            f" {fmean(r.stages_measured for r, _ in rows):9.0f}"
            f" {fmean(r.stages_measured / best.stages_measured for r, best in rows):7.2%}"
            f" {_off(rows):>8}"
            f" {fmean(r.search_seconds for r, _ in rows):8.2f}"
        )


def _off(rows: Iterable[tuple[Result, Result]]) -> str:
    staged = [r.predicted_us / best.predicted_us - 1 for r, best in rows if r.join]
    return f"{fmean(staged):.2%}" if staged else "-"


def print_summary(results: Sequence[Result]) -> None:
    """Where the optimum was missed, and where another planner won."""
    pairs: dict[tuple[str, str, int], dict[str, Result]] = {}
    for r in results:
        pairs.setdefault((r.network, r.device, r.seed), {})[r.planner] = r
    print("\nstages that lazy-ios measures, the worst device and seed, as a share of those of ios")
    for network in dict.fromkeys(r.network for r in results):
        rows = [by for (name, _, _), by in pairs.items() if name == network]
        shares = [
            max(by[planner].stages_measured / by["ios"].stages_measured for by in rows)
            for planner in ("lazy-ios", "lazy-ios 1%")
        ]
        off = max(by["lazy-ios"].predicted_us / by["ios"].predicted_us - 1 for by in rows)
        print(f"  {network:16} exact {shares[0]:7.2%}   gap 1% {shares[1]:7.2%}   off {off:.1e}")
    lost = [pair for pair, by in pairs.items() if _winner(by) not in OURS]
    share = 1 - len(lost) / len(pairs)
    print(f"\nno other planner beats ios on {share:.1%} of {len(pairs)} pairs")
    for pair in lost:
        winner = pairs[pair][_winner(pairs[pair])]
        by = min(pairs[pair][ours].latency_us for ours in OURS) / winner.latency_us - 1
        print(f"  {' '.join(map(str, pair))}: {winner.planner} is {by:.2%} faster")
    if lost:
        print("  A plan without barriers lets units of different stages and blocks overlap; stages")
        print("  cannot say so. That is why the portfolio enters such plans too.")


def _winner(by: dict[str, Result]) -> str:
    """The planner with the least latency; ours, if they are equal to it."""
    least = min(result.latency_us for result in by.values())
    return next(
        planner for planner in (*OURS, *by) if by[planner].latency_us <= least * (1 + CLOSE)
    )


def time_search(structures: Sequence[Structure]) -> None:
    """CPU seconds of the exact search alone: each stage costs the same and takes no time."""

    class Free:
        def stage_latency_us(self, stage: Stage) -> float:
            return 1.0

    def convolutions(units: UnitGraph) -> tuple[tuple[int, ...], ...]:
        by_operands: dict[object, list[int]] = {}
        for unit, (kind, operands) in enumerate(zip(units.kinds, units.operands, strict=True)):
            if kind == "conv":
                by_operands.setdefault(operands, []).append(unit)
        return tuple(map(tuple, by_operands.values()))

    limits = {
        "r=3, s=8, both strategies": PlannerSettings("ios"),
        "unpruned, single root": PlannerSettings("ios", None, None, single_root=True),
    }
    print(f"\n{'search alone, CPU s':28}", *(f"{name:>28}" for name in limits))
    for structure in structures:
        facts = DeviceFacts(merge_groups=convolutions(structure.units))
        seconds = [
            min(plan(structure.units, Free(), options, facts).search_seconds for _ in range(3))
            for options in limits.values()
        ]
        print(f"{structure.name:28}", *(f"{value:28.2f}" for value in seconds))


def structures_of(args: argparse.Namespace) -> list[Structure]:
    """The networks that the command line asks for and that are at hand."""
    structures = [googlenet(), resnet50(), bert_base()]
    for name in PAPER_NETWORKS:
        path = args.graphs / f"{name}.json"
        if path.exists():
            structures.append(paper_graph(path))
        else:
            print(f"{name} left out: there is no {path}")
    structures += [imported_graph(path) for path in args.graph]
    return [one for one in structures if not args.networks or one.name in args.networks.split(",")]


def main() -> None:
    parser = parser_of("benchmarks.planners", __doc__)
    parser.add_argument("--out", type=Path, help="folder for planners.json")
    parser.add_argument("--graphs", type=Path, default=PAPER_GRAPHS, metavar="DIR")
    parser.add_argument("--graph", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--networks", help="comma-separated; all by default")
    parser.add_argument("--devices", default="large,medium", help=f"of {', '.join(DEVICES)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--interference", type=float, help="instead of the devices' own")
    parser.add_argument("--search", action="store_true", help="time the exact search, no device")
    args = parser.parse_args()
    structures = structures_of(args)
    if args.search:
        time_search(structures)
        return
    models = [DEVICES[name] for name in args.devices.split(",")]
    if args.interference is not None:
        models = [replace(model, interference=args.interference) for model in models]
    report = Report(describe(), {model.name: asdict(model) for model in models})
    for structure in structures:
        for model in models:
            for seed in range(args.seeds):
                report.results.extend(run(structure, model, seed))
        print_table([r for r in report.results if r.network == structure.name])
    print_summary(report.results)
    if args.out is not None:
        write_report(args.out / "planners.json", asdict(report))


if __name__ == "__main__":
    main()
