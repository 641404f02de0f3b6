"""More models than memory has room for: all of them answer, and what a cold one takes.

    python -m benchmarks.on_demand --models 1000 --fit 50 --out FOLDER
    python -m benchmarks.on_demand --models 20 --size 4096 --settle 65      memory of 20 models

Registers models of distinct weights (y = factor * x, by a whole matrix) on a server whose worker
has room for ``--fit`` of them, asks all of them in an order by chance, each twice, then starts
again on the store and asks once more. An answer that is wrong or missing ends it, and so does a
database that is damaged, or a restart that does not load those first that were used last.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from urllib.request import urlopen

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.environment import describe
from benchmarks.footprint import pss_mib
from benchmarks.load.processes import BraidServer, braid_server
from benchmarks.reports import parser_of, write_report
from braid.core.shapes import PART
from braid.server.models.residency import ESTIMATE_BYTES, ESTIMATE_FACTOR, LIBRARIES_BYTES
from braid_client import Client, ModelState

AT_ONCE = 4  # callers
QUIET_S = 3.0  # after which a restart loads no more


@dataclass(frozen=True, slots=True)
class Asked:
    """Milliseconds of requests: the first for each model, and one right after it."""

    first_p50_ms: float
    first_p99_ms: float
    second_p50_ms: float
    second_p99_ms: float
    all_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one run; memory is the PSS of all processes."""

    models: int
    weights_mib: float  # of all models
    registered_s: float
    registration_ms: tuple[float, float]  # until it serves: medians of the first and last tenth
    asked: Asked
    in_memory: int  # models, after that
    memory_mib: float
    front_end_mib: float
    restarted_ready_s: float
    restarted_loaded_s: float  # later: those that were used last, as many as fit
    asked_again: Asked


def main() -> None:
    parser = parser_of("benchmarks.on_demand", __doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--fit", type=int, default=50, help="models that memory has room for")
    parser.add_argument("--size", type=int, default=1024, help="of a matrix, each way")
    parser.add_argument("--settle", type=float, default=0.0, help="seconds, then memory is read")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--out", type=Path, help="folder for on-demand.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = arguments.models, arguments.fit, arguments.size
        report = run(Path(folder), *sizes, arguments.settle, arguments.seed)
    print(json.dumps(asdict(report), indent=2))
    if arguments.out is not None:
        document = {"environment": describe("torch", "onnxruntime"), **asdict(report)}
        write_report(arguments.out / "on-demand.json", document)


def run(folder: Path, count: int, fit: int, size: int, settle_s: float, seed: int) -> Report:
    models_bytes = fit * ESTIMATE_FACTOR * 4 * size**2 + ESTIMATE_BYTES  # as counted once loaded
    limit_bytes = (LIBRARIES_BYTES + models_bytes) * PART // (PART - 1)
    environment = {"BRAID_WORKER_MEMORY_BYTES": str(limit_bytes), "BRAID_RESTORE_SECONDS": "0"}
    factors = {f"net-{number}": number + 1 for number in range(count)}
    order = random.Random(seed).sample(list(factors), count)
    store = folder / "store"
    with braid_server(store, environment=environment) as server:
        times_s = register(server.client, factors, folder / "net.onnx", size)
        asked = ask_all(server, factors, order, size)
        check(server.client, factors)
        time.sleep(settle_s)
        in_memory = len(loaded(server))
        by_process = pss_mib(server)
    check_database(store)
    began = monotonic()
    with braid_server(store, environment=environment) as server:
        restarted_s = monotonic() - began, restored(server, order)
        again = ask_all(server, factors, order[::-1], size)
        check(server.client, factors)
    check_database(store)
    weights_mib = count * 4 * size**2 / 2**20
    tenth = -(-count // 10)
    first_ms, last_ms = (1000 * median(part) for part in (times_s[:tenth], times_s[-tenth:]))
    return Report(
        *(count, weights_mib, sum(times_s), (first_ms, last_ms), asked, in_memory),
        memory_mib=sum(by_process.values()),
        front_end_mib=next(iter(by_process.values())),
        restarted_ready_s=restarted_s[0],
        restarted_loaded_s=restarted_s[1],
        asked_again=again,
    )


def register(client: Client, factors: Mapping[str, int], file: Path, size: int) -> list[float]:
    """Register a model for each factor, one after the other; returns the seconds of each."""
    times_s = []
    for name, factor in factors.items():
        write_matrix(file, factor, size)
        began = monotonic()
        job = client.register(name, file, batch_sizes=[1], planner="sequential")
        while client.model(name).state is not ModelState.SERVING:
            time.sleep(0.01)
        client.cancel_job(job.id)  # its schedule is of no interest here
        times_s.append(monotonic() - began)
    return times_s


def write_matrix(file: Path, factor: int, size: int) -> None:
    weights = numpy_helper.from_array(np.eye(size, dtype=np.float32) * factor, "w")
    places = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name in "xy"
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "matrix", places[:1], places[1:], [weights])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), file)


def ask_all(
    server: BraidServer, factors: Mapping[str, int], order: Sequence[str], size: int
) -> Asked:
    """Ask each model twice, by a few callers at once.

    Raises:
        ValueError: an answer is wrong.
    """
    row = np.ones((1, size), np.float32)

    def timed_ms(name: str) -> float:
        began = monotonic()
        outputs = server.client.infer(name, {"x": row}).outputs["y"]
        if not (outputs == factors[name]).all():
            raise ValueError(f"{name} answered {outputs[0, 0]}, not {factors[name]}")
        return 1000 * (monotonic() - began)

    began = monotonic()
    with ThreadPoolExecutor(AT_ONCE) as callers:
        both = list(callers.map(lambda name: (timed_ms(name), timed_ms(name)), order))
    all_s = monotonic() - began
    first, second = np.array(both).T
    (first_p50, first_p99), (second_p50, second_p99) = (
        map(float, np.percentile(times, (50, 99))) for times in (first, second)
    )
    return Asked(first_p50, first_p99, second_p50, second_p99, all_s)


def restored(server: BraidServer, used: Sequence[str]) -> float:
    """Wait until a restart loads no more models; returns the seconds until the last of them.

    Raises:
        ValueError: it loaded others than those that were ``used`` last.
    """
    began, seen, since = monotonic(), set[str](), monotonic()
    while monotonic() - since < QUIET_S:
        time.sleep(0.2)
        if (now := loaded(server)) != seen:
            seen, since = now, monotonic()
    if strange := seen - set(used[-len(seen) - AT_ONCE :]):
        raise ValueError(f"the restart loaded {strange} before models that were used later")
    return since - began


def loaded(server: BraidServer) -> set[str]:
    """Names of the models that are in memory."""
    with urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=600) as answer:
        text = answer.read().decode()
    return set(re.findall(r"^braid_model_loaded{model=\"(.*?)\".* 1\.0$", text, re.MULTILINE))


def check(client: Client, factors: Mapping[str, int]) -> None:
    """Check that no model is lost.

    Raises:
        ValueError: the server knows others, or one does not serve.
    """
    states = {model.name: model.state for model in client.models()}
    if states != dict.fromkeys(factors, ModelState.SERVING):
        serve = {name for name, state in states.items() if state is ModelState.SERVING}
        wrong = {name: states.get(name) for name in factors.keys() - serve}
        raise ValueError(f"{len(states)} models; not serving: {wrong}")


def check_database(store: Path) -> None:
    """Check the database of a store whose server has ended.

    Raises:
        ValueError: SQLite finds it damaged.
    """
    for file in store.glob("*.db"):
        with closing(sqlite3.connect(file)) as connection:
            (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise ValueError(f"{file}: {verdict}")


if __name__ == "__main__":
    main()
