"""The benchmark on a GPU: ``python -m benchmarks.engine --device cuda``, see there.

    agenda ─> step by step: plans (device worker, planner process) ─> contenders in turns ─> record
       └─ in the background: artefacts of the networks

One device worker serves the whole run; it rests while contenders are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cuda.agenda import BATCHES, BRAID, NETWORKS, Budget, Step, agenda
from benchmarks.cuda.library import Library
from benchmarks.cuda.plan_files import PlanFiles, Planned, read_plans, write_plans
from benchmarks.cuda.record import CudaCase, contender_name
from benchmarks.cuda.results import print_case, print_summary, read, same_setting, write
from benchmarks.cuda.turns import Setting, measure
from benchmarks.environment import describe
from benchmarks.planned import plans_on
from braid.compiler.result_files import ResultFiles
from braid.core.errors import BraidError
from braid.core.schedule import SEQUENTIAL
from braid.engine.link.options import WorkerOptions
from braid.scheduler.options import PlannerSettings
from braid.server.devices.device import Device
from braid.server.observability.logs import configure_logging

LEAST_S = 20.0
"""A step is not begun with less time left: processes alone take longer to start."""

PLAN_S = 180.0
"""For the artefact and the plans of one network."""

TURN_S = 0.08
"""Of runs of one contender by one clock, before it is the next one's turn."""

_GIB = 1 << 30


class Benchmark:
    """One run: its cases, and what they are measured with."""

    def __init__(self, args: argparse.Namespace, device: Device, work: Path) -> None:
        self._args = args
        self._device = device
        self._work = work
        self._results = ResultFiles(
            work / "store"
        )  # latencies of kernels, which serve all networks
        self._budget = Budget(args.minutes * 60)
        self._environment: dict[str, object] = {}
        self._plans: PlanFiles = {}
        self.left_out: list[str] = []
        self.cases: list[CudaCase] = []

    async def run(self) -> None:
        args, cores = self._args, len(os.sched_getaffinity(0))
        networks = args.networks or NETWORKS
        library = Library(args.models or self._work / "models", networks)
        try:
            await self._device.start()
            self._environment = {
                **describe("torch", "triton", "onnx"),
                "device": self._device.device_key,
                "software": self._device.software,
                "precision": args.precision,
                "minutes": args.minutes,
                "host_cores": cores,
            }
            if args.earlier:
                self.cases, self._plans = continued(args.earlier, self._environment, self._work)
            for step in agenda(networks, args.batches or BATCHES, args.without):
                if not self._is_known(step):
                    await self._attempt(step, library)
                    self._write()
        finally:
            await library.close()
            await self._device.close()
        self._write()
        print_summary(self.cases, self.left_out)

    def _is_known(self, step: Step) -> bool:
        """Whether an earlier run measured all of a step's rivals."""
        case = self._case_of(step)
        rivals = [name for name in step.contenders if name != BRAID]
        return (
            case is not None
            and case.portfolio in case.gpu_ms
            and all(name in case.gpu_ms for name in rivals)
        )

    def _case_of(self, step: Step) -> CudaCase | None:
        where = step.network, step.batch
        return next((case for case in self.cases if (case.network, case.batch) == where), None)

    async def _attempt(self, step: Step, library: Library) -> None:
        if self._budget.left_s < LEAST_S:
            self.left_out.append(str(step))
            return
        case = self._case(step)
        print(f"\n{step} ({self._budget.left_s:.0f} s left)", flush=True)
        try:
            async with asyncio.timeout(self._budget.at_most(PLAN_S)):
                artefact = await library.network(step.network)
                if BRAID in step.contenders and (step.network, step.batch) not in self._plans:
                    await self._plan(case, artefact)
                    self._write()
        except TimeoutError:
            if self._budget.left_s:
                case.failed[BRAID] = "making and planning it took too long"
        except Exception as error:  # the next network may fare better
            case.failed[BRAID] = f"{type(error).__name__}: {error}"
            if not isinstance(error, BraidError):
                traceback.print_exc()
        await asyncio.to_thread(measure, case, self._setting(step, case))
        if not self._budget.left_s and not self._is_known(step):
            self.left_out.append(str(step))
        print_case(case)

    def _case(self, step: Step) -> CudaCase:
        case = self._case_of(step)
        if case is None:
            case = CudaCase(step.network, step.batch)
            self.cases.append(case)
        return case

    async def _plan(self, case: CudaCase, artefact: Path) -> None:
        args = self._args
        folder = self._work / f"{case.network}-{case.batch}"
        digest = await asyncio.to_thread(_digest, artefact)
        async with self._device.keeping(digest):
            searched = await plans_on(
                self._device,
                artefact,
                case.batch,
                folder,
                PlannerSettings.for_serving(args.planner),
                results=self._results,
                others=False,
                precision=args.precision,
            )
        case.portfolio = contender_name(searched.portfolio)
        case.errors = searched.errors
        case.plan_of = {
            planner: contender_name(name)
            for name in searched.plans
            for planner in (name, *searched.also[name])
        }
        case.failed |= {contender_name(name): why for name, why in searched.refused.items()}
        took = searched.scheduling
        case.scheduling = {
            "kernels_s": took.kernels_s,
            "planning_s": took.planning_s,
            "stages_measured": float(took.stages_measured),
            "contest_s": took.contest_s,
            "total_s": took.total_s,
        }
        fit = {name: path for name, path in searched.plans.items() if name not in searched.refused}
        self._plans[case.network, case.batch] = Planned(fit, searched.choices)

    def _setting(self, step: Step, case: CudaCase) -> Setting:
        commands = {}
        base = [sys.executable, "-m", "benchmarks.cuda.contender", "--network", step.network]
        base += ["--batch", str(step.batch), "--precision", self._args.precision]
        for name in step.contenders:
            command = [*base, "--contender", name]
            if name == BRAID:
                plans = self._worth_a_run(step, case)
                if not plans:
                    continue
                listed = self._work / f"{step.network}-{step.batch}-plans.json"
                paths = {name: str(path) for name, path in plans.items()}
                choices = dict(self._plans[step.network, step.batch].choices)
                listed.write_text(json.dumps({"plans": paths, "choices": choices}))
                artefact = (self._args.models or self._work / "models") / step.network
                command += ["--artefact", str(artefact), "--plans", str(listed)]
            commands[name] = command
        return Setting(self._budget, commands, self._work, TURN_S)

    def _worth_a_run(self, step: Step, case: CudaCase) -> Mapping[str, Path]:
        """All plans; beside a single slow rival only those that ratios are about."""
        planned = self._plans.get((step.network, step.batch))
        plans = planned.plans if planned else {}
        if len(step.contenders) > 2:
            return plans
        named = {case.portfolio, contender_name(SEQUENTIAL)}
        return {name: path for name, path in plans.items() if contender_name(name) in named}

    def _write(self) -> None:
        write(self.cases, self._environment, self.left_out, self._args.out)
        write_plans(self._plans, self._args.out)


def continued(
    path: Path, environment: Mapping[str, object], work: Path
) -> tuple[list[CudaCase], PlanFiles]:
    """Cases and plans of an earlier run; none if it was of another device or precision."""
    if not same_setting(path, environment):
        device, precision = environment["device"], environment["precision"]
        print(f"{path} is not of {device} in {precision}: all is measured again", flush=True)
        return [], {}
    return read(path), read_plans(path.parent, work)


def _digest(artefact: Path) -> str:
    from braid.engine.importer.host.report import read_report

    return read_report(artefact).sha256


async def _benchmark(args: argparse.Namespace, work: Path) -> Sequence[CudaCase]:
    threads = min(4, len(os.sched_getaffinity(0)))
    options = WorkerOptions(threads, _GIB, 2 * _GIB, 7, gpu=0, start_timeout_s=120.0)
    benchmark = Benchmark(args, Device("cuda:0", options), work)
    await benchmark.run()
    return benchmark.cases


def main(args: argparse.Namespace) -> int:
    """Run the benchmark; 0 unless there is no GPU or nothing at all was measured."""
    import torch

    if not torch.cuda.is_available():
        print("no NVIDIA GPU (or no torch that sees one) here: nothing was measured")
        return 0
    if args.earlier and not args.earlier.exists():
        print(f"--earlier: there is no {args.earlier}", file=sys.stderr)
        return 2
    configure_logging("WARNING")  # with what a worker prints
    with tempfile.TemporaryDirectory() as folder:
        cases = asyncio.run(_benchmark(args, Path(folder)))
    return 0 if any(case.gpu_ms for case in cases) else 1
