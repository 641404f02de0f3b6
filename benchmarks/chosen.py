"""What a registration chose beside every other candidate, in each state of the cores.

    python -m benchmarks.chosen --minutes 20 --out FOLDER [--networks A,B] [--batches 1,2,8]

    state of now ──> a case without plans of it: search and compare as a registration does
                └──> a case without rounds in it: all candidates in turns, in a worker that serves

What the state that there is lacks is done first, so both states are measured in whatever order the
host brings them; a round with a change is dropped, and a search with one begins again with what it
had measured. Candidates are all that the comparison had, both runtimes, and what was chosen in the
other state.

A turn is as in service: requests one by one, with pauses in which threads fall asleep, after one
that does not count. A figure is the device's own time. Ratios are medians over rounds of the ratio
of two turns of one round; the best of many candidates is partly the luckiest, by about 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Protocol

from benchmarks import environment
from benchmarks.engine_results import geometric_mean
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS, arrays_of
from benchmarks.planned import SearchedPlans, cpu_device, imported, keep, kept, plans_on
from benchmarks.reports import LOCAL, names, numbers, parser_of, write_report
from benchmarks.states import BOTH, LOOK_S, add_state
from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.compiler.result_files import ResultFiles
from braid.core.allowance import cpu_allowance
from braid.core.device_state import FAR, NEAR
from braid.core.errors import BraidError, DeviceChanged, PreconditionFailed
from braid.core.plan import plan_from_json
from braid.core.program import PlanToRun, ProgramKey, sorted_choices
from braid.engine.importer.host.report import read_report
from braid.engine.link.messages import DescribeDevice
from braid.engine.timing.contenders import PAUSE_S, QUICK_US
from braid.scheduler.options import PlannerSettings
from braid.server.devices.executables import Executable

DEFAULT = ("squeezenet", "shufflenet", "mnasnet", "googlenet", "resnet50", "mnasnet_pair")

TURN_S, MOST_RUNS = 0.08, 20
"""Seconds of a turn without its first run, about, and runs in it, at most."""

LEAST_ROUNDS = 5

HOPELESS = 1.25
"""A candidate that takes so many times as long as the fastest one in each of two rounds leaves."""

WITHIN = 1.03
"""What serves is to take at most this many times as long as the best candidate."""


@dataclass(slots=True)
class Case:
    """A network at one batch size, in one state."""

    network: str
    batch: int
    state: str
    chosen: str = ""  # candidate that serves; empty: it was not searched yet
    doubt: str = ""  # why that is provisional; empty: it is not
    elsewhere: str = ""  # the one that was chosen in the other state; empty: not known
    is_new: list[str] = field(default_factory=list)  # candidates for cores that are far apart
    turns_ms: dict[str, list[float]] = field(default_factory=dict)  # by candidate, of each round
    failed: dict[str, str] = field(default_factory=dict)
    search_s: Mapping[str, float] = field(default_factory=dict)  # by what it was for
    seconds: float = 0.0  # of rounds
    is_done: bool = False

    @property
    def name(self) -> str:
        return f"{self.network}, batch {self.batch}, {self.state}"

    @property
    def rounds(self) -> int:
        return len(self.turns_ms.get(self.chosen, ()))

    def ms(self, candidate: str) -> float:
        return median(self.turns_ms.get(candidate) or [nan])

    def ratio(self, one: str, other: str) -> float:
        """How many times as long one candidate takes as another, by rounds that both ran in."""
        pairs = zip(self.turns_ms.get(one, ()), self.turns_ms.get(other, ()), strict=False)
        return median([one_ms / other_ms for one_ms, other_ms in pairs] or [nan])

    def best(self, *, only_old: bool = False) -> str:
        """The candidate beside which what serves takes longest."""
        rivals = [n for n, t in self.turns_ms.items() if t and not (only_old and n in self.is_new)]
        return max(rivals, key=lambda name: self.ratio(self.chosen, name))

    @property
    def over_best(self) -> float:
        """How many times as long what serves takes as the best candidate."""
        return self.ratio(self.chosen, self.best())

    def hopeful(self) -> list[str]:
        """Candidates that may yet be the best, and those that were chosen here and elsewhere."""
        kept = self.chosen, self.elsewhere
        staying = {n: t for n, t in self.turns_ms.items() if n in kept or len(t) == self.rounds}
        if self.rounds < 2:
            return [*staying]
        best_ms = min(map(max, staying.values()))
        return [n for n, t in staying.items() if n in kept or min(t) <= HOPELESS * best_ms]


class Lab(Protocol):
    """Where cases are searched and measured; either ends with DeviceChanged after a change."""

    async def state(self) -> str: ...

    async def search(self, case: Case) -> None: ...

    async def measure(self, case: Case) -> None: ...


async def follow(cases: Sequence[Case], lab: Lab, until_s: float) -> None:
    """Do what the present state lacks, until all is done or the time is over."""
    while monotonic() < until_s and (lacking := [case for case in cases if not case.is_done]):
        state = await lab.state()
        here = [case for case in lacking if case.state == state]
        if not here:
            await asyncio.sleep(LOOK_S)
            continue
        case = min(here, key=lambda one: (one.batch, bool(one.chosen)))
        try:
            await (lab.measure(case) if case.chosen else lab.search(case))
        except DeviceChanged:
            continue
        except BraidError as error:
            case.failed["all"], case.is_done = str(error), True


class WorkerLab(Lab):
    """Searches and measures on the CPU, in the processes of a server's device."""

    def __init__(self, args: argparse.Namespace, work: Path, write: Callable[[], None]) -> None:
        """Start nothing yet; ``write`` is called after each step."""
        self._args, self._work, self._write = args, work, write
        self._device = cpu_device(args.threads)
        self._results = ResultFiles(work / "store")
        self._entrants: dict[tuple[str, int, str], dict[str, PlanToRun]] = {}
        self.close = self._device.close

    async def start(self) -> None:
        """Import all networks, and start the worker."""
        for network in self._args.networks:
            await imported(model_file(network, self._args.models or self._work), self._of(network))
        await self._device.start()

    async def state(self) -> str:
        return (await self._device.link.call(DescribeDevice())).state.name

    async def search(self, case: Case) -> None:
        folder = self._folder(case, case.state)
        searched = await asyncio.to_thread(kept, folder)
        if searched is None:
            artefact, options = self._of(case.network), PlannerSettings.for_serving("")
            async with self._device.keeping(read_report(artefact).sha256):
                wanted = self._device, artefact, case.batch, folder, options
                searched = await plans_on(*wanted, results=self._results, state=case.state)
            await asyncio.to_thread(keep, searched, folder)
        took = searched.scheduling
        case.chosen, case.doubt = searched.portfolio, searched.doubt
        case.search_s = {**took.requests_s, "all": took.total_s}
        about = f"  {case.name}: {case.chosen}, in {took.total_s:.1f} s"
        print("; ".join(filter(None, [about, case.doubt])), flush=True)
        self._write()

    async def measure(self, case: Case) -> None:
        artefact = self._of(case.network)
        digest = read_report(artefact).sha256
        async with self._device.keeping(digest):
            await self._device.load(digest, artefact)
            ready = await self._prepared(case)
            offset = self._slot(case, next(iter(ready.values())))
            try:
                await self._rounds(case, ready, offset)
            finally:
                self._device.arena.release(offset)
        case.is_done = True
        print(text(case), flush=True)
        self._write()

    def _of(self, network: str) -> Path:
        return self._work / network

    def _folder(self, case: Case, state: str) -> Path:
        return self._work / f"{case.network}-{case.batch}-{state}"

    async def _prepared(self, case: Case) -> dict[str, Executable]:
        """Make those candidates ready to run that may yet be the best."""
        key = case.network, case.batch, case.state
        if key not in self._entrants:
            self._entrants[key] = await asyncio.to_thread(self._all_entrants, case)
        ready: dict[str, Executable] = {}
        for name in case.hopeful() or self._entrants[key]:
            try:
                ready[name] = await self._device.prepare(self._entrants[key][name])
                case.turns_ms.setdefault(name, [])
            except BraidError as error:
                case.failed[name] = str(error)
        if case.chosen not in ready:
            raise PreconditionFailed(f"{case.chosen} does not run: {case.failed[case.chosen]}")
        return ready

    def _all_entrants(self, case: Case) -> dict[str, PlanToRun]:
        """All candidates; tells the case which of them are new, and what the other state runs."""
        artefact, options = self._of(case.network), ModelOptions((case.batch,))
        digest = read_report(artefact).sha256
        program = read_imported(digest, options, artefact).program(case.batch)
        runtimes = self._device.runtimes
        searched = kept(self._folder(case, case.state))
        assert searched is not None
        entrants = runs_of(program, searched, runtimes)
        case.is_new = [name for name, run in entrants.items() if is_new(run)]
        state = FAR if case.state == NEAR else NEAR
        if (other := kept(self._folder(case, state))) is not None:
            run = runs_of(program, other, runtimes)[other.portfolio]
            same = (name for name, own in entrants.items() if is_same(own, run))
            case.elsewhere = next(same, f"{other.portfolio}, as {state}")
            entrants.setdefault(case.elsewhere, run)
        return entrants

    def _slot(self, case: Case, ready: Executable) -> int:
        """Memory of a batch, with its inputs; all candidates have the same layout."""
        arena = self._device.arena
        offset = arena.allocate(ready.layout.size_bytes)
        assert offset is not None
        for name, array in arrays_of(NETWORKS[case.network], case.batch).items():
            place = ready.layout.inputs[name]
            start = offset + place.offset
            arena.view[start : start + place.size_bytes] = array.tobytes()
        return offset

    async def _rounds(self, case: Case, ready: Mapping[str, Executable], offset: int) -> None:
        """Hold rounds until there are enough.

        Raises:
            DeviceChanged: the state is another one; the round does not count.
        """
        await self._check(case)
        limit_s = self._args.seconds
        while case.rounds < self._args.rounds:
            if case.rounds >= LEAST_ROUNDS and case.seconds >= limit_s:
                break
            began, order = monotonic(), [name for name in case.hopeful() if name in ready]
            first = case.rounds % len(order)
            turns = {n: await self._turn(ready[n], offset) for n in order[first:] + order[:first]}
            await self._check(case)
            for name, turn_ms in turns.items():
                case.turns_ms[name].append(turn_ms)
            case.seconds += monotonic() - began

    async def _check(self, case: Case) -> None:
        if (state := await self.state()) != case.state:
            raise DeviceChanged(case.state, state)

    async def _turn(self, ready: Executable, offset: int) -> float:
        """Milliseconds of a run of the device, median over a turn."""
        first_us = (await self._device.run(ready, offset)).compute_us
        if first_us >= QUICK_US:
            return first_us / 1e3
        samples_us = []
        for _ in range(max(1, min(MOST_RUNS, round(TURN_S / (first_us * 1e-6 + PAUSE_S))))):
            await asyncio.sleep(PAUSE_S)
            samples_us.append((await self._device.run(ready, offset)).compute_us)
        return median(samples_us) / 1e3


def runs_of(
    program: ProgramKey, searched: SearchedPlans, runtimes: Sequence[str]
) -> dict[str, PlanToRun]:
    """Candidates of a search by name, with all ``runtimes``."""
    program = replace(program, choices=sorted_choices(searched.choices))
    plans = {name: plan_from_json(json.loads(p.read_text())) for name, p in searched.plans.items()}
    runs = {name: PlanToRun(program, plan, name) for name, plan in plans.items()}
    runs |= {name: PlanToRun(program, None, name, name) for name in runtimes}
    return {name: run for name, run in runs.items() if name not in searched.refused}


def is_same(one: PlanToRun, other: PlanToRun) -> bool:
    if one.runtime or other.runtime:
        return one.runtime == other.runtime
    return (one.program, one.plan) == (other.program, other.plan)


def is_new(run: PlanToRun) -> bool:
    """Whether it is a candidate for cores that are far apart: it divides work otherwise."""
    return run.plan is not None and bool(run.plan.parts)


def text(case: Case) -> str:
    best, line = case.best(), f"{case.name}: {case.chosen} {case.ms(case.chosen):.2f} ms"
    line += f", {case.over_best:.3f} of the best"
    line += f" ({best} {case.ms(best):.2f} ms)" if best != case.chosen else ""
    if case.elsewhere:
        line += f"; {case.elsewhere}, chosen in the other state, {case.ms(case.elsewhere):.2f} ms"
    return f"{line}; {case.rounds} rounds"


def summary(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Figures by state and batch size, over all networks that were measured."""
    tables: dict[str, dict[str, float]] = {}
    done = [case for case in cases if case.rounds]
    for state, batch in sorted({(case.state, case.batch) for case in done}):
        here = [case for case in done if (case.state, case.batch) == (state, batch)]
        over_best = [case.over_best for case in here]
        tables[f"{state}, batch {batch}"] = {
            "networks": len(here),
            "of the best": geometric_mean(over_best),
            "greatest": max(over_best),
            "within 3 %": sum(ratio <= WITHIN for ratio in over_best),
            "faster than without new candidates": geometric_mean(
                [case.ratio(case.best(only_old=True), case.chosen) for case in here]
            ),
            "faster than the other state's": geometric_mean(
                [case.ratio(case.elsewhere, case.chosen) for case in here]
            ),
        }
    return tables


def _print(cases: Sequence[Case]) -> None:
    for name, row in summary(cases).items():
        figures = (f"{what} {figure:.3f}".removesuffix(".000") for what, figure in row.items())
        print(f"{name}: {', '.join(figures)}")
    if missing := [case.name for case in cases if not case.is_done]:
        print(f"not done in this time: {'; '.join(missing)}")


async def _run(args: argparse.Namespace, work: Path) -> int:
    states = (NEAR, FAR) if args.state in ("", BOTH) else (args.state,)
    cases = [Case(n, b, s) for b in args.batches for n in args.networks for s in states]
    report = {"environment": environment.describe("onnxruntime", "openvino")}

    def write() -> None:
        measured = [asdict(case) | {"over_best": case.over_best} for case in cases if case.rounds]
        write_report(
            args.out / "chosen.json", report | {"cases": measured, "ratios": summary(cases)}
        )

    lab = WorkerLab(args, work, write)
    try:
        await lab.start()
        await follow(cases, lab, monotonic() + 60 * args.minutes)
    finally:
        await lab.close()
    _print(cases)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("benchmarks.chosen", __doc__)
    parser.add_argument("--networks", type=names, default=list(DEFAULT))
    parser.add_argument("--batches", type=numbers, default=[1, 2, 8])
    parser.add_argument("--minutes", type=float, default=20.0, help="after which nothing is begun")
    parser.add_argument("--rounds", type=int, default=9, help="of each case, at most")
    parser.add_argument("--seconds", type=float, default=12.0, help="of rounds of a case, about")
    parser.add_argument("--threads", type=int, default=cpu_allowance().threads)
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument("--plans", type=Path, help="folder where plans are kept for the next run")
    parser.add_argument("--out", type=Path, default=LOCAL)
    add_state(parser)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="braid-chosen-") as temporary:
        work = args.plans or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        return asyncio.run(_run(args, work))


if __name__ == "__main__":
    sys.exit(main())
