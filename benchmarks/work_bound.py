"""How much any schedule could gain over the sequential plan: a bound by the work of all units.

    python -m benchmarks.work_bound --networks googlenet,nasnet_mobile --models FOLDER --out FOLDER

Each unit is measured alone, as a stage on all threads and on one:

    sequential = sum of the times on all threads
    work       = sum over units of min(time on one, threads * time on all) / threads
    bound      = max(work, longest path, a unit taking the shorter of its two times)

Plans run a unit on one thread or on all, so none of these units take less than the bound together.
Not in it: merged units, which are other units, and what caches keep from one unit to the next.
Prints a line for each network and writes work_bound.json after each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.environment import describe
from benchmarks.networks.export import model_file
from benchmarks.planned import imported, kept
from benchmarks.reports import write_report
from benchmarks.states import add_state, by_state, present_state, wait_for
from braid.compiler.device import measure as measure_stage
from braid.core.allowance import cpu_allowance
from braid.core.graph import OpGraph
from braid.core.precision import FP32, PRECISIONS
from braid.core.program import ProgramKey, static_content
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import file_digest, read_graph, read_report
from braid.engine.link.messages import DescribeProgram, MeasureStage
from braid.engine.link.options import WorkerOptions
from braid.scheduler.units import UnitGraph
from braid.server.devices.device import Device

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Microseconds of one unit."""

    name: str
    on_all_us: float
    on_one_us: float

    def work_us(self, threads: int) -> float:
        """Least time of all cores together."""
        return min(self.on_one_us, threads * self.on_all_us)


@dataclass(frozen=True, slots=True)
class Bound:
    """What the units of a network add up to, in microseconds."""

    sequential_us: float
    work_us: float  # of each core, if both are never idle
    path_us: float

    @property
    def least_us(self) -> float:
        """Least time of any schedule."""
        return max(self.work_us, self.path_us)

    @property
    def gain(self) -> float:
        """Largest speed of any schedule as a multiple of the sequential plan's."""
        return self.sequential_us / self.least_us


def bound_of(graph: OpGraph, units: Sequence[UnitTimes], threads: int) -> Bound:
    """Bound of a graph whose operators take these times, in the same order."""
    done: dict[str, float] = {}  # value -> when it may be there
    for op, unit in zip(graph.operators, units, strict=True):
        began = max((done.get(name, 0.0) for name in op.inputs), default=0.0)
        ended = began + min(unit.on_all_us, unit.on_one_us)
        done.update(dict.fromkeys(op.outputs, ended))
    work = sum(unit.work_us(threads) for unit in units) / threads
    return Bound(sum(unit.on_all_us for unit in units), work, max(done.values(), default=0.0))


async def measure(
    device: Device, artefact: Path, model: Path, precision: str, choices: dict[str, str]
) -> tuple[OpGraph, list[UnitTimes]]:
    """Times of a network's units at batch 1; units that do the same are measured once."""
    digest = await asyncio.to_thread(file_digest, model)
    report = read_report(artefact)
    template = read_graph(artefact, report)
    static = static_content(report.static_values, template.inputs)
    inputs = tuple(
        (name, TensorType(spec.dtype, (1, *spec.shape[1:])))
        for name, spec in template.inputs.items()
    )
    program = ProgramKey(digest, inputs, static, precision, choices=tuple(choices.items()))
    async with device.keeping(digest):
        await device.load(digest, artefact)
        graph = (await device.ask(DescribeProgram(program))).graph
        by_signature: dict[str, tuple[float, float]] = {}
        signatures = UnitGraph.from_graph(graph).signatures
        for index, signature in enumerate(signatures):
            if signature not in by_signature:
                stage = Stage(((index,),))
                on_all = await measure_stage(device, MeasureStage(program, stage))
                on_one = await measure_stage(device, MeasureStage(program, stage, 1))
                by_signature[signature] = on_all.latency_us, on_one.latency_us
    names = [op.name for op in graph.operators]
    return graph, [UnitTimes(n, *by_signature[s]) for n, s in zip(names, signatures, strict=True)]


async def run(args: argparse.Namespace, folder: Path) -> None:
    environment, results = describe("torch", "onednn-cpu-gomp"), {}
    device = Device("cpu", WorkerOptions(args.threads, _GIB, 2 * _GIB, 7))
    await device.start()
    try:
        for network in args.networks.split(","):
            model = model_file(network, args.models or folder)
            searched = kept(args.plans / f"{network}-1-{args.precision}") if args.plans else None
            choices = {} if searched is None else dict(searched.choices)
            artefact = await imported(model, (args.plans or folder) / model.stem)
            while True:
                graph, units = await measure(device, artefact, model, args.precision, choices)
                if not args.state or await asyncio.to_thread(present_state) == args.state:
                    break
                await asyncio.to_thread(wait_for, args.state)
            bound = bound_of(graph, units, args.threads)
            print(f"{network:16} {bound}  gain at most {bound.gain:.3f}", flush=True)
            results[network] = {**asdict(bound), "gain": bound.gain, "units": len(units)}
            document = {**environment, "precision": args.precision, "networks": results}
            write_report(args.out / "work_bound.json", document)
    finally:
        await device.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", default="googlenet")
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx")
    parser.add_argument("--plans", type=Path, help="of benchmarks.engine, for its kernels")
    parser.add_argument("--precision", choices=PRECISIONS, default=FP32)
    parser.add_argument("--threads", type=int, default=cpu_allowance().threads)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/local"))
    add_state(parser)
    return by_state(parser.parse_args(), _run)


def _run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(args, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
