"""Does a server that registered models on a busy machine serve the right plans once it is quiet?

    python -m benchmarks.busy_registration --rounds 2 --models FOLDER
    python -m benchmarks.busy_registration --rounds 1 squeezenet mnasnet

a round:  server A: register all networks beside processes that take all cores
          these end ─> the machine is left alone until nothing is provisional, five minutes at most
          server B, an empty store: register the same networks, one after the other, quietly
          one client asks A and B in turns: p50 of each, and the median of the ratios of the turns

A network passes if A's p50 is at most ``--within`` above B's, and nothing was provisional any more.

B registers a network in the state of the cores in which A last made its schedule, as far as
``--state-wait`` allows (benchmarks/states.py): it decides between plans. What was registered in
another one is told, and neither passes nor fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import environment
from benchmarks.load.processes import braid_server
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS
from benchmarks.reports import LOCAL, parser_of, write_report
from benchmarks.served import Inputs
from benchmarks.states import present_state
from braid_client import Client, Job

DEFAULT_NETWORKS = ("squeezenet", "mnasnet", "googlenet", "randwire_small", "resnet50")
DEFAULT_OUT = LOCAL / "busy_registration.json"

LONGEST_S = 3600.0  # of a registration
LOOK_S = 3.0  # between two looks at what is still provisional: each takes the server some time
WARM_UPS = 20
TURNS, TURN_S = 12, 1.0
STATE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What serves a network."""

    plan_id: str
    planner: str
    is_promoted: bool
    provisional: str
    speedup: float

    @staticmethod
    def of(client: Client, name: str) -> Plan:
        (schedule,) = client.model(name).schedules
        return Plan(
            schedule.plan_id,
            schedule.planner,
            schedule.promoted,
            schedule.provisional,
            schedule.speedup,
        )


@dataclass(slots=True)
class Case:
    """One network in one round."""

    network: str
    registered_s: float = 0.0  # beside the busy processes
    busy: Plan | None = None  # at the end of that
    settled_s: float | None = None  # since these ended; None: it is still provisional
    state: str = ""  # when A last made its schedule
    quiet_state: str = ""  # when B made its own
    quiet_registered_s: float = 0.0
    settled: Plan | None = None
    quiet: Plan | None = None
    p50_us: float = 0.0
    quiet_p50_us: float = 0.0
    ratio: float = 0.0  # A over B, median of turns
    ratios: list[float] = field(default_factory=list)

    @property
    def is_comparable(self) -> bool:
        """Whether both were made in one state of the cores."""
        return self.settled_s is None or self.state == self.quiet_state

    def passes(self, within: float) -> bool:
        """Whether A serves as fast as what a quiet registration chose."""
        return self.settled_s is not None and self.ratio <= 1.0 + within


def wait_for(state: str, most_s: float) -> None:
    """Wait until the cores are in a state, or for so long as that may take."""
    until = time.monotonic() + most_s
    while state and present_state() != state and time.monotonic() < until:
        time.sleep(LOOK_S)


def _take_a_core() -> None:
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """As many processes as are told always want a core, each."""
    spawn = multiprocessing.get_context("spawn")
    burners = [spawn.Process(target=_take_a_core, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def register_busily(client: Client, cases: Sequence[Case], models: Mapping[str, Path]) -> None:
    """Register all networks at once, as a deployment does, and wait until all jobs have ended."""
    began = time.monotonic()
    jobs = {case.network: client.register(case.network, models[case.network]) for case in cases}
    for case in cases:
        _wait_for(client, jobs[case.network])
        case.registered_s = time.monotonic() - began
        case.busy = Plan.of(client, case.network)
        print(f"  busy: {case.network} {case.registered_s:.0f} s, {_words(case.busy)}", flush=True)


def _wait_for(client: Client, job: Job) -> None:
    for state in client.watch_job(job.id, timeout_s=LONGEST_S):
        job = state
    if not job.serves:
        sys.exit(f"{job.model} does not serve: {job.message}")


def let_settle(client: Client, cases: Sequence[Case], idle_s: float) -> None:
    """Look on until no network is provisional, for a bounded time."""
    began, open_ = time.monotonic(), {case.network: case for case in cases}
    while open_ and time.monotonic() < began + idle_s:
        for model in client.models():
            if model.name in open_ and not any(plan.provisional for plan in model.schedules):
                case = open_.pop(model.name)
                case.settled_s = time.monotonic() - began
                case.state = present_state()
        time.sleep(LOOK_S)
    for case in cases:
        case.settled = Plan.of(client, case.network)
        after = "never" if case.settled_s is None else f"after {case.settled_s:.0f} s"
        print(f"  settled {after}: {case.network}, {_words(case.settled)}", flush=True)


def register_quietly(
    client: Client, cases: Sequence[Case], models: Mapping[str, Path], wait_s: float
) -> None:
    """Register each network with the machine to itself, in the state that A's had."""
    for case in cases:
        began = time.monotonic()
        for attempt in range(STATE_TRIES):
            wait_for(case.state, wait_s)
            before = present_state()
            if attempt == 0:
                job = client.register(case.network, models[case.network])
            else:
                job = client.schedule_again(case.network)
            _wait_for(client, job)
            after = present_state()
            case.quiet_state = after if before == after else f"{before}, then {after}"
            case.quiet = Plan.of(client, case.network)
            if case.is_comparable and not case.quiet.provisional:
                break
        case.quiet_registered_s = time.monotonic() - began
        assert case.quiet is not None
        words = _words(case.quiet)
        print(f"  quiet: {case.network} {case.quiet_registered_s:.0f} s, {words}", flush=True)


def compare(one: Client, other: Client, case: Case) -> None:
    """Ask two servers in turns, as one client does that waits for each answer."""
    inputs = _inputs(case.network)
    clients = (one, other)
    for client in clients:
        for _ in range(WARM_UPS):
            client.infer(case.network, inputs)
    p50s: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for which in order:
            p50s[which].append(_p50_us(clients[which], case.network, inputs))
    case.ratios = [ours / theirs for ours, theirs in zip(*p50s, strict=True)]
    case.ratio = median(case.ratios)
    case.p50_us, case.quiet_p50_us = map(median, p50s)


def _p50_us(client: Client, name: str, inputs: Inputs) -> float:
    client.infer(name, inputs)  # fills the caches
    latencies_us, until = [], time.perf_counter() + TURN_S
    while (began := time.perf_counter()) < until:
        client.infer(name, inputs)
        latencies_us.append((time.perf_counter() - began) * 1e6)
    return median(latencies_us)


def _inputs(name: str) -> Inputs:
    network = NETWORKS[name]
    tensors = zip(network.input_names, network.example_inputs(1), strict=True)
    return {input_name: tensor.numpy() for input_name, tensor in tensors}


def _words(plan: Plan) -> str:
    provisional = f", provisional: {plan.provisional}" if plan.provisional else ""
    serves = plan.planner if plan.is_promoted else "sequential"
    return f"{serves} ({plan.plan_id}){provisional}"


def hold_round(args: argparse.Namespace, work: Path, models: Mapping[str, Path]) -> list[Case]:
    cases = [Case(name) for name in args.networks]
    with braid_server(work / "busy") as server:
        client = server.client
        with busy(args.processes):
            register_busily(client, cases, models)
        let_settle(client, cases, args.idle)
        with braid_server(work / "quiet") as quiet:
            other = quiet.client
            register_quietly(other, cases, models, args.state_wait)
            for case in cases:
                compare(client, other, case)
                print(text(case, args.within), flush=True)
    return cases


def text(case: Case, within: float) -> str:
    settled = "   -" if case.settled_s is None else f"{case.settled_s:4.0f}"
    verdict = "passes" if case.passes(within) else "FAILS"
    if not case.is_comparable:
        verdict = f"made {case.state}, quiet one {case.quiet_state}"
    same = "same plan" if _plan_id(case.settled) == _plan_id(case.quiet) else "another plan"
    return (
        f"{case.network:16} registered {case.registered_s:5.0f} s  settled {settled} s  "
        f"p50 {case.p50_us / 1e3:8.2f} ms  quiet {case.quiet_p50_us / 1e3:8.2f} ms  "
        f"ratio {case.ratio:5.3f}  {same:12}  {verdict}"
    )


def _plan_id(plan: Plan | None) -> str:
    if plan is None:
        return ""
    return plan.plan_id if plan.is_promoted else "sequential"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("benchmarks.busy_registration", __doc__)
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=f"default: {' '.join(DEFAULT_NETWORKS)}"
    )
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument("--models", type=Path, help="folder with NETWORK.onnx; exported if missing")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="that want a core, each; default: as many as there are cores",
    )
    parser.add_argument("--idle", type=float, default=300.0, help="seconds at most; default: 300")
    parser.add_argument("--within", type=float, default=0.05, help="default: 0.05")
    parser.add_argument(
        "--state-wait", type=float, default=120.0, help="seconds at most, for each network"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    args = parser.parse_args(arguments)
    args.networks = args.networks or list(DEFAULT_NETWORKS)
    if unknown := [name for name in args.networks if name not in NETWORKS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NETWORKS)}")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if a network fails."""
    args = _options(arguments)
    facts = environment.describe("torch", "onnxruntime", "grpcio")
    rounds: list[list[Case]] = []
    with tempfile.TemporaryDirectory(prefix="braid-busy-") as temporary:
        folder = args.models or Path(temporary)
        models = {name: model_file(name, folder) for name in args.networks}
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", flush=True)
            work = Path(temporary) / f"round-{number}"
            work.mkdir()
            rounds.append(hold_round(args, work, models))
    cases = [case for cases_of_round in rounds for case in cases_of_round]
    judged = [case for case in cases if case.is_comparable]
    passed = sum(case.passes(args.within) for case in judged)
    print(f"\n{passed} of {len(judged)} pass, {len(cases) - len(judged)} are not comparable")
    for case in cases:
        print(text(case, args.within))
    report = {
        "benchmark": "busy_registration",
        "environment": facts,
        "processes": args.processes,
        "idle_s": args.idle,
        "within": args.within,
        "passed": passed,
        "judged": len(judged),
        "rounds": [[asdict(case) for case in cases_of_round] for cases_of_round in rounds],
    }
    write_report(args.out, report)
    return 0 if passed == len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
