"""How long a model takes from its upload until it answers, and until it serves its best plans.

    python -m benchmarks.ready --models FOLDER --rounds 5 --out FOLDER
    python -m benchmarks.ready --only six forty --beside 2
    python -m benchmarks.ready --only squeezenet mnasnet --tree CHECKOUT --state near

A server on an empty store for each registration, idle for ``--settle`` seconds before it. What the
job reports is the timeline: each step from its first report to that of the next one. ``--beside N``
runs N loops that never pause beside the server, as a busy machine has them. ``--tree`` names
another checkout with its ``.venv``, whose server registers each model in turn with this one's; the
ratio is that of medians.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.environment import REPOSITORY, describe
from benchmarks.load.children import running
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import export_onnx
from benchmarks.networks.fires import FIRES
from benchmarks.networks.onnx_file import write_onnx
from benchmarks.networks.registry import NETWORKS
from benchmarks.reports import numbers, parser_of, write_report
from benchmarks.states import add_state, by_state, in_state
from braid_client import Client

LOOP = "while True: pass"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to register, and the greatest number of seconds until READY that is wanted."""

    name: str
    batch_sizes: tuple[int, ...] = (1,)
    wanted_s: float = float("inf")


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("six", (1,), 5.0),
        Subject("forty", (1,), 5.0),
        Subject("squeezenet", (1, 8), 20.0),
        Subject("inception_v3", (1,), 60.0),
    )
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a registration; seconds since the upload began."""

    began_s: float
    state: str
    what: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One registration."""

    steps: tuple[Step, ...]
    serves_s: float  # when the sequential plan answers
    ready_s: float
    outcome: str
    plans: Mapping[int, str]  # planner that serves, by batch size
    speedups: Mapping[int, float | None]  # over the sequential plan, by batch size

    def lasted_s(self) -> dict[str, float]:
        """Seconds of each step, in the order of the steps."""
        ends = [*(step.began_s for step in self.steps[1:]), self.ready_s]
        taken: dict[str, float] = {}
        for step, end in zip(self.steps, ends, strict=True):
            name = f"{step.state.lower()}: {step.what}"
            taken[name] = taken.get(name, 0.0) + end - step.began_s
        return taken


def register(client: Client, subject: Subject, path: Path) -> Timeline:
    """Register a model and follow its job to the end."""
    began = time.monotonic()
    job = client.register(subject.name, path, batch_sizes=subject.batch_sizes)
    steps = [Step(0.0, "UPLOAD", "file")]
    serves_s = float("inf")
    for state in client.watch_job(job.id):
        now_s, job = time.monotonic() - began, state
        if state.ended:
            break
        # A count in a detail changes with each stage; the step is the same.
        step = Step(now_s, state.state.value, re.sub(r"\d+ stages", "stages", state.detail))
        if (step.state, step.what) != (steps[-1].state, steps[-1].what):
            steps.append(step)
        if serves_s > now_s and (
            state.detail == "serving with the sequential plan" or state.state.value == "PROFILING"
        ):
            serves_s = now_s
    ready_s = time.monotonic() - began
    schedules = client.model(subject.name).schedules
    return Timeline(
        tuple(steps),
        serves_s,
        ready_s,
        f"{job.state.value} {job.message}".strip(),
        {plan.batch_size: plan.planner for plan in schedules},
        {plan.batch_size: plan.speedup for plan in schedules},
    )


@contextmanager
def served(work: Path, settle_s: float, tree: Path) -> Iterator[Client]:
    """A checkout's server on an empty store, up and idle for some seconds."""
    python = sys.executable if tree == REPOSITORY else str(tree / ".venv/bin/python")
    with braid_server(work / "store", tree=tree, python=python) as server:
        time.sleep(settle_s)
        yield server.client


def measure(subject: Subject, path: Path, settle_s: float, beside: int, tree: Path) -> Timeline:
    """One registration on a server of its own, beside loops that never pause."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        client = stack.enter_context(served(Path(folder), settle_s, tree))
        for _ in range(beside):
            stack.enter_context(running(["python3", "-c", LOOP]))
        return register(client, subject, path)


def report(subject: Subject, timelines: Sequence[Timeline]) -> None:
    """Print the median timeline of one model, and its totals."""
    ready_s = median(timeline.ready_s for timeline in timelines)
    serves_s = median(timeline.serves_s for timeline in timelines)
    print(
        f"\n{subject.name}, batch {subject.batch_sizes}: serves after {serves_s:.2f} s, ready after"
        f" {ready_s:.2f} s ({min(t.ready_s for t in timelines):.2f} to"
        f" {max(t.ready_s for t in timelines):.2f} in {len(timelines)};"
        f" wanted {subject.wanted_s:g})"
    )
    for timeline in timelines:
        print(f"  {timeline.outcome}  {timeline.plans}  {timeline.speedups}")
    steps: dict[str, list[float]] = {}
    for timeline in timelines:
        for name, seconds in timeline.lasted_s().items():
            steps.setdefault(name, []).append(seconds)
    for name, taken in steps.items():
        print(f"  {median(taken):8.2f} s  {name}")


def files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Files of the models by name; what is missing is exported."""
    paths = {name: folder / f"{name}.onnx" for name in names}
    for name, path in paths.items():
        if not path.exists():
            write_onnx(FIRES[name], path) if name in FIRES else export_onnx(name, path)
    return paths


def compare(one: Sequence[Timeline], other: Sequence[Timeline]) -> str:
    """What one checkout takes over what the other one takes, by medians."""
    one_s, other_s = (median(each.ready_s for each in timelines) for timelines in (one, other))
    return f"ready after {one_s / other_s:.2f} of the other checkout's time"


def run(args: argparse.Namespace) -> int:
    environment = describe("torch", "onnxruntime")
    subjects = [SUBJECTS.get(name) or Subject(name) for name in args.only]
    if args.batches:
        subjects = [Subject(subject.name, tuple(args.batches)) for subject in subjects]
    trees = [REPOSITORY, *([args.tree.resolve()] if args.tree else [])]
    timelines: dict[tuple[str, Path], list[Timeline]] = {
        (name, tree): [] for name in args.only for tree in trees
    }
    with tempfile.TemporaryDirectory() as temporary:
        paths = files(args.models or Path(temporary), args.only)
        for round_ in range(args.rounds):
            for subject in subjects:
                path = paths[subject.name]
                for tree in trees[:: -1 if round_ % 2 else 1]:
                    made = in_state(
                        args.state,
                        partial(measure, subject, path, args.settle, args.beside, tree),
                    )
                    timelines[subject.name, tree].append(made)
                    print(f"{subject.name}, {tree.name}: {made.ready_s:.2f} s", flush=True)
    for subject in subjects:
        for tree in trees:
            report(subject, timelines[subject.name, tree])
        if args.tree:
            print(compare(*(timelines[subject.name, tree] for tree in trees)))
    if args.out is not None:
        document = {
            "environment": environment,
            "beside": args.beside,
            "models": [
                {
                    **asdict(subject),
                    "tree": "" if tree == REPOSITORY else tree.name,
                    "timelines": list(map(asdict, timelines[subject.name, tree])),
                }
                for subject in subjects
                for tree in trees
            ],
        }
        write_report(args.out / "ready.json", document)
    return 0


def main() -> int:
    parser = parser_of("benchmarks.ready", __doc__)
    names = sorted({*SUBJECTS, *NETWORKS})
    parser.add_argument("--only", nargs="+", choices=names, default=[*SUBJECTS], metavar="NETWORK")
    parser.add_argument("--batches", type=numbers, help="batch sizes in place of a model's usual")
    parser.add_argument("--rounds", type=int, default=1, help="registrations of each, in turns")
    parser.add_argument("--settle", type=float, default=5.0, help="idle seconds before each")
    parser.add_argument("--beside", type=int, default=0, help="loops that never pause")
    parser.add_argument("--tree", type=Path, help="another checkout, which registers them in turns")
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument("--out", type=Path, help="folder for ready.json")
    add_state(parser)
    return by_state(parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
