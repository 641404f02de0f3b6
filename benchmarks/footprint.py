"""What a server costs: memory of all its processes, and seconds until it answers.

    python -m benchmarks.footprint --rounds 3 --out FOLDER
    python -m benchmarks.footprint --model bert_base     any of benchmarks.networks
    python -m benchmarks.footprint --other PATH          in turns with another build of Braid

A round: a server that takes a model as soon as it is ready; one that is asleep when it comes; idle
for ``--settle`` seconds, and again so long after its plans' contest is decided; its worker killed
while one client asks without pause, a few times; started again on the same store. Memory is the
proportional set size (PSS): what is shared counts once.
"""

from __future__ import annotations

import compileall
import json
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.environment import REPOSITORY, describe
from benchmarks.load.processes import BraidServer, braid_server
from benchmarks.networks import NETWORKS
from benchmarks.networks.export import export_onnx
from benchmarks.reports import parser_of, write_report
from braid_client import BraidError, Client, TensorSpec

KILLS = 3
EMPTY_S = 15.0  # after which an empty server is looked at; it is asleep after 10
MOST_CONTEST_S = 900.0
SERVED_S = 12.0
"""Time between kills, after which a worker is replaced without a pause."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Figures of one round; memory in MiB, times in seconds."""

    empty_mib: float
    contest_mib: float  # idle, while plans compete
    idle_mib: float
    idle_by_process_mib: Mapping[str, float]
    ready_s: float  # of a server on an empty store
    first_answer_s: float  # since the upload began, of a server that has just started
    first_answer_asleep_s: float  # the same of one that had no models for a while
    again_s: Sequence[float]  # from the end of a worker to the next answer
    restarted_s: float  # from the start on a store with the model to the first answer


def main() -> None:
    parser = parser_of("benchmarks.footprint", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=65.0, help="seconds; benches end in 10")
    parser.add_argument("--other", type=Path, help="folder that holds another build of braid")
    parser.add_argument("--out", type=Path, help="folder for footprint.json")
    parser.add_argument("--model", choices=sorted(NETWORKS), default="squeezenet")
    arguments = parser.parse_args()
    builds = {"this": REPOSITORY}
    if arguments.other is not None:
        builds["other"] = arguments.other.absolute()
    for tree in builds.values():  # as pip does
        for package in (*tree.glob("*/__init__.py"), tree / "client/braid_client/__init__.py"):
            compileall.compile_dir(package.parent, quiet=1)
    rounds: dict[str, list[Footprint]] = {name: [] for name in builds}
    with tempfile.TemporaryDirectory() as folder:
        model = export_onnx(arguments.model, Path(folder) / "model.onnx")
        for number in range(arguments.rounds):
            for name, tree in builds.items():
                store = Path(folder) / f"{name}-{number}"
                rounds[name].append(measure(model, store, tree, arguments.settle))
                print(name, json.dumps(asdict(rounds[name][-1])), flush=True)
    if arguments.out is not None:
        figures = {name: list(map(asdict, footprints)) for name, footprints in rounds.items()}
        document = {"environment": describe("torch", "onnxruntime"), "rounds": figures}
        write_report(arguments.out / "footprint.json", document)


def measure(model: Path, store: Path, tree: Path, settle_s: float) -> Footprint:
    """One round of the build in the folder ``tree``."""
    environment = {"PYTHONPATH": str(tree)} if tree != REPOSITORY else {}
    other = store.with_name(f"{store.name}-awake")
    with braid_server(other, environment=environment, tree=tree) as server:
        began = monotonic()
        server.client.register("model", model, batch_sizes=[1])
        first_answer_s = answered(server.client) - began
    began = monotonic()
    with braid_server(store, environment=environment, tree=tree) as server:
        ready_s = monotonic() - began
        time.sleep(EMPTY_S)
        empty_mib = sum(pss_mib(server).values())
        began = monotonic()
        job = server.client.register("model", model, batch_sizes=[1])
        first_answer_asleep_s = answered(server.client) - began
        for state in server.client.watch_job(job.id):
            if state.ended:
                break
        time.sleep(settle_s)
        contest_mib = sum(pss_mib(server).values())
        wait_for_decision(server.client)
        time.sleep(settle_s)
        by_process = pss_mib(server)
        again_s = [killed_under_load(server) for _ in range(KILLS)]
    began = monotonic()
    with braid_server(store, environment=environment, tree=tree) as server:
        restarted_s = answered(server.client) - began
    memory = empty_mib, contest_mib, sum(by_process.values()), by_process
    first = first_answer_s, first_answer_asleep_s
    return Footprint(*memory, ready_s, *first, again_s, restarted_s)


def wait_for_decision(client: Client) -> None:
    """Wait until no plans of the model compete any more, or for ``MOST_CONTEST_S``."""
    until = monotonic() + MOST_CONTEST_S
    while monotonic() < until:
        contests = [schedule.contest for schedule in client.model("model").schedules]
        if all(contest is None or contest.decided for contest in contests):
            return
        time.sleep(1.0)


def pss_mib(server: BraidServer) -> dict[str, float]:
    """Memory of each process of a server, by its module and number."""
    memory = {}
    for process in processes(server):
        with suppress(OSError, psutil.Error):  # it has ended
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            (size_kib,) = re.findall(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
            memory[f"{module_of(process)} {process.pid}"] = int(size_kib) / 1024
    return memory


def processes(server: BraidServer) -> list[psutil.Process]:
    first = psutil.Process(server.process.pid)
    return [first, *first.children(recursive=True)]


def module_of(process: psutil.Process) -> str:
    return next((part for part in process.cmdline() if part.startswith("braid.")), "")


def answered(client: Client) -> float:
    """Ask until there is an answer; the time of the clock then."""
    while True:
        with suppress(BraidError):
            if inputs := client.model("model").inputs:
                client.infer("model", dict(map(zeros, inputs)))
                return monotonic()
        time.sleep(0.002)


def zeros(given: TensorSpec) -> tuple[str, NDArray[np.generic]]:
    """One row of an input, by name."""
    shape = [1, *(size if isinstance(size, int) else 1 for size in given.shape[1:])]
    return given.name, np.zeros(shape, np.int64 if given.dtype == "INT64" else np.float32)


def killed_under_load(server: BraidServer) -> float:
    """Kill the worker that serves one busy client; seconds until its next answer."""
    until = monotonic() + SERVED_S
    while monotonic() < until:
        answered(server.client)
    (worker,) = (p for p in processes(server) if p.pid == serving_worker(server))
    worker.send_signal(signal.SIGKILL)
    began = monotonic()
    return answered(server.client) - began


def serving_worker(server: BraidServer) -> int:
    """The worker that has used the most CPU time: others are kept in reserve, if any are."""
    workers = [p for p in processes(server) if "worker.process" in module_of(p)]
    return max(workers, key=lambda worker: sum(worker.cpu_times()[:2])).pid


if __name__ == "__main__":
    main()
