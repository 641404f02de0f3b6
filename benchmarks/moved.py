"""Requests around a change of state: does the plan of the new state serve soon, and what waits.

    python -m benchmarks.moved [squeezenet] [--clients 1] --out benchmarks/results/moved.json

    one server:          register while cores are near ─> its schedule, and one for far cores
    another, same store: clients ask │ far │ near │       as long a time before, then around each

The workers of the server are told distances in place of measuring them, so the change comes when
it is wanted and nothing else changes with it. The schedule for far cores is the other one's with
ONNX Runtime (or the sequential plan, where near cores have a runtime): another executable, of which
the worker has to open a session while it serves. The first change prepares it, the second one finds
what served before.

Goals: the new plan serves within 5 s, no request fails, and p99 of the minute around the change is
at most twice p50 in the slower state.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from statistics import median

from benchmarks import environment
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS, arrays_of
from benchmarks.reports import LOCAL, parser_of, percentile, replace_text, write_report
from braid.compiler.result_files import SCHEDULES, ResultFiles
from braid.core.device_state import FAR, NEAR
from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import SEQUENTIAL, Schedule
from braid_client import BraidError, Client, ModelState, RetryPolicy

DISTANCE_NS = {NEAR: 45.0, FAR: 300.0}

MOST_SWITCH_S, MOST_TAIL = 5.0, 2.0
WARM_UPS = 20
LONGEST_S = 600.0

_TOLD = """
import sys
from pathlib import Path

if "braid.engine.processes.fork_server" in sys.orig_argv:
    from braid.engine.cpu import core_distance

    def told(pairs, pause=None):
        return [float(Path({file!r}).read_text())] * len(pairs)

    core_distance.measure_round_trips = told
"""
"""A ``sitecustomize`` by which workers read the distance of all cores from a file."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request ended; times in seconds of ``time.monotonic``."""

    at_s: float  # when it had ended
    took_us: float
    plan_id: str  # empty: it failed
    error: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What clients saw in the time around one change."""

    to: str
    switch_s: float  # until the first answer of another plan; not a number: there was none
    requests: int
    failed: int
    p50_us: tuple[float, float]  # under the plan of before, and the one after
    p99_us: float  # of all in this time
    steady: float  # p99 over p50 in as long a time without a change

    @property
    def tail(self) -> float:
        """p99 over p50 in the slower state."""
        return self.p99_us / max(self.p50_us)

    @property
    def is_good(self) -> bool:
        return self.switch_s <= MOST_SWITCH_S and not self.failed and self.tail <= MOST_TAIL


def change_of(
    to: str, at_s: float, around_s: float, answers: Sequence[Answer], steady: float = nan
) -> Change:
    """Reduce the answers of ``around_s`` seconds on either side of a change."""
    here = [answer for answer in answers if abs(answer.at_s - at_s) <= around_s]
    right = sorted((a for a in here if not a.error), key=lambda answer: answer.at_s)
    before = next((a.plan_id for a in right), "")
    after = [a for a in right if a.plan_id != before and a.at_s > at_s]
    old_us = [a.took_us for a in right if a.plan_id == before]
    new_us = [a.took_us for a in after]
    return Change(
        to,
        after[0].at_s - at_s if after else nan,
        len(here),
        len(here) - len(right),
        (median(old_us or [nan]), median(new_us or [nan])),
        percentile([a.took_us for a in right], 99),
        steady,
    )


def tail_of(answers: Sequence[Answer]) -> float:
    """p99 over p50 of the answers that came."""
    took_us = [answer.took_us for answer in answers if not answer.error]
    return percentile(took_us, 99) / median(took_us or [nan])


def for_far_cores(near: Schedule) -> Schedule:
    """A schedule for the other state whose executable is another one."""
    provenance = replace(near.provenance, state=FAR, promoted=True, provisional=None, reason="")
    key = replace(near.key, state=FAR)
    if near.serves_sequentially or not near.runtime:
        return replace(near, key=key, planner=ONNXRUNTIME, provenance=provenance)
    plan = sequential_plan(len(near.unit_names))
    return replace(near, key=key, planner=SEQUENTIAL, plan=plan, stages=(), provenance=provenance)


def add_schedule(store: Path) -> None:
    """Add the schedule for far cores to a store whose only model has one for near cores."""
    results = ResultFiles(store)
    (digest,) = (folder.name for folder in (store / SCHEDULES).iterdir())
    (near,) = (one for one in results.schedules_of(digest) if one.key.batch_size == 1)
    results.put_schedule(for_far_cores(near), results.find_graph(near))


@dataclass(slots=True)
class Clients:
    """Threads that ask one model, each with a pause after an answer."""

    address: str
    network: str
    pause_s: float
    answers: list[Answer] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        inputs = arrays_of(NETWORKS[self.network])
        with Client(self.address, retry=RetryPolicy(max_attempts=1)) as client:
            while not self._over.wait(self.pause_s):
                began, plan_id, error = time.monotonic(), "", ""
                try:
                    plan_id = client.infer(self.network, inputs, timeout_s=60.0).plan_id
                except BraidError as failed:
                    error = str(failed)
                now = time.monotonic()
                self.answers.append(Answer(now, (now - began) * 1e6, plan_id, error))

    def run(self, count: int, work: Callable[[], None]) -> None:
        """Ask by ``count`` threads while ``work`` goes on."""
        threads = [threading.Thread(target=self.ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            work()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()


def wait_until_serving(client: Client, name: str) -> None:
    until = time.monotonic() + LONGEST_S
    while client.model(name).state is not ModelState.SERVING:
        if time.monotonic() > until:
            sys.exit(f"{name} does not serve again")
        time.sleep(0.1)


def measure(args: argparse.Namespace, work: Path) -> list[Change]:
    told, store = work / "distance", work / "store"
    hook = work / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_TOLD.format(file=str(told)))
    surroundings = {"PYTHONPATH": str(hook)}
    replace_text(told, str(DISTANCE_NS[NEAR]))
    with braid_server(store, environment=surroundings) as server:
        model = model_file(args.network, args.models or work)
        server.client.register(args.network, model, wait=True, timeout_s=LONGEST_S)
    add_schedule(store)
    with braid_server(store, environment=surroundings) as server:
        wait_until_serving(server.client, args.network)
        for _ in range(WARM_UPS):
            server.client.infer(args.network, arrays_of(NETWORKS[args.network]))
        clients = Clients(server.address, args.network, args.pause)
        changed_at: list[tuple[str, float]] = []

        def change() -> None:
            time.sleep(3 * args.around)
            for state in (FAR, NEAR) * args.times:
                replace_text(told, str(DISTANCE_NS[state]))
                changed_at.append((state, time.monotonic()))
                time.sleep(2 * args.around)

        clients.run(args.clients, change)
    around_s, (_, first_s), *_ = args.around, *changed_at
    steady = tail_of([answer for answer in clients.answers if answer.at_s < first_s - around_s])
    return [change_of(to, at_s, around_s, clients.answers, steady) for to, at_s in changed_at]


def text(change: Change) -> str:
    before_ms, after_ms = (us / 1e3 for us in change.p50_us)
    return (
        f"to {change.to:4}: the new plan after {change.switch_s:.1f} s, {change.failed} of "
        f"{change.requests} requests failed, p50 {before_ms:.2f} and {after_ms:.2f} ms, p99 "
        f"{change.p99_us / 1e3:.2f} ms: {change.tail:.2f} of p50 in the slower state "
        f"({change.steady:.2f} in as long a time before)"
        f"{'' if change.is_good else '; a goal is missed'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("benchmarks.moved", __doc__)
    parser.add_argument("network", nargs="?", choices=NETWORKS, default="squeezenet")
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--pause", type=lambda s: float(s) / 1e3, default=0.005, help="ms, of each")
    parser.add_argument("--around", type=float, default=30.0, help="seconds on each side")
    parser.add_argument("--times", type=int, default=1, help="changes there and back")
    parser.add_argument("--out", type=Path, default=LOCAL / "moved.json")
    args = parser.parse_args(arguments)
    facts = environment.describe("onnxruntime", "grpcio")
    with tempfile.TemporaryDirectory(prefix="braid-moved-") as temporary:
        changes = measure(args, Path(temporary))
    print(*map(text, changes), sep="\n")
    seen = [asdict(change) | {"tail": change.tail} for change in changes]
    about = {"network": args.network, "clients": args.clients, "pause_s": args.pause}
    write_report(args.out, {"environment": facts, **about, "changes": seen})
    return 0 if all(change.is_good for change in changes) else 1


if __name__ == "__main__":
    sys.exit(main())
