"""Tenants, each with numbers of its own, ask random graphs of one server at once.

    draw ──> register a few ──> all tenants ask all of them ──> each answer is that of its own rows

The right answer is ONNX Runtime's on the request alone. The first graph is drawn from SEED, the
next from SEED + 1; those of odd seeds mix rows. Graphs that were answered wrongly are kept.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from braid_client import BraidError, Client, ModelState, RetryPolicy
from braid_client.tensors import Array
from campaigns.tenants.graphs import Drawn, draw
from tests.service.server_process import BRAID, ServerProcess

AT_ONCE = 6  # graphs
TENANTS = 16
REQUESTS = 8  # of a tenant to a graph, asked again and again
SIZES = (1, 4, 16)
TURN_S = 0.4  # of a graph
ASKED_S = 6.0  # in all; in every fourth round on, until the schedules are made
CLOSE = 1e-3  # relative to the largest number of the answer
ROUNDING = 2.0**-20  # of a request's numbers, relative: answers move so without a finding
MOVED = 4  # times
OWN, FOREIGN, SHARED = "its own", "foreign", "beside rows of others"

Question = tuple[Array, list[Array], list[float]]
"""A request, the right answer, and by how much each output may differ."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph, and what each tenant asks of it."""

    name: str
    drawn: Drawn
    data: bytes
    asked: list[list[Question]]  # by tenant

    @property
    def kind(self) -> str:
        return "with mixes" if self.drawn.mixes else "apart"


def subject(seed: int) -> Subject:
    """Draw a graph and requests to it; those that ONNX Runtime refuses are left out."""
    drawn, options = draw(seed), onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data = drawn.model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    asked: list[list[Question]] = [[] for _ in range(TENANTS)]
    chance = np.random.default_rng(seed)
    for tenant, questions in enumerate(asked):
        for x in _numbers(drawn, seed, tenant):
            try:
                wanted = session.run(None, {"x": x})
                moved = [session.run(None, {"x": _moved(x, chance)}) for _ in range(MOVED)]
                questions.append((x, wanted, list(map(_near, wanted, zip(*moved, strict=True)))))
            except Exception:  # of no rows, mostly
                continue
    return Subject(f"graph-{seed}", drawn, data, asked)


def _numbers(drawn: Drawn, seed: int, tenant: int) -> Iterator[Array]:
    """Requests of a tenant: about its own mean; of some tenants loud now and then, or NaN."""
    chance = np.random.default_rng((seed, tenant))
    for number in range(REQUESTS):
        rows = 1 if drawn.is_fixed else int(chance.choice([1, 1, 1, 1, 1, 2, 3, 0]))
        x = chance.normal(tenant / TENANTS, 1, (rows, *drawn.row)).astype(np.float32)
        if tenant % 4 == 0 and number % 2:
            x *= 3000
        if tenant % 4 == 1 and number % 2 and rows:
            x.flat[0] = np.nan
        yield x


def _moved(x: Array, chance: np.random.Generator) -> Array:
    moved: Array = x * (1 + chance.choice([-ROUNDING, ROUNDING], x.shape).astype(x.dtype))
    return moved


def _near(right: Array, moved: Sequence[Array]) -> float:
    """By how much an output may differ: sums that cancel keep the rounding of their terms."""
    known = np.isfinite(right)
    own = CLOSE * max(1.0, float(np.max(np.abs(right[known]), initial=0)))
    apart = np.nan_to_num(np.abs(np.stack(moved) - right), nan=0, posinf=0)
    return max(own, 16 * float(np.max(apart, initial=0)))


def _is_right(question: Question, got: Sequence[Array]) -> bool:
    """Whether an answer is right; what operators make of a request's own NaN is not compared."""
    x, wanted, nears = question
    for each, right, near in zip(got, wanted, nears, strict=True):
        if each.shape != right.shape:
            return False
        if not np.isnan(x).any() and not np.allclose(each, right, 0, near, equal_nan=True):
            return False
    return True


def ask(client: Client, subject: Subject, question: Question) -> list[str]:
    """How a request ended."""
    x, wanted, _ = question
    try:
        result = client.infer(subject.name, {"x": x}, timeout_s=60)
    except BraidError as error:
        return [type(error).__name__ if len(x) else f"{type(error).__name__}, of no rows"]
    is_own = _is_right(question, [result.outputs[f"y{n}"] for n in range(len(wanted))])
    is_shared = 0 < len(x) < result.batch_rows
    return [OWN if is_own else FOREIGN, *([SHARED] if is_shared else [])]


def _tenant(
    number: int, address: str, subjects: Sequence[Subject], stop: threading.Event
) -> Counter[tuple[str, str]]:
    """Ask until told to stop; all tenants ask the same graph, then the next one."""
    chance, ends = random.Random(f"{subjects[0].name} {number}"), Counter[tuple[str, str]]()
    with Client(address, retry=RetryPolicy(max_attempts=1)) as client:
        while not stop.is_set():
            one = subjects[int(time.monotonic() / TURN_S) % len(subjects)]
            question = chance.choice(one.asked[number])
            ends.update((one.name, end) for end in ask(client, one, question))
    return ends


def add_options(parser: argparse.ArgumentParser) -> None:
    kept = Path(tempfile.gettempdir()) / "braid-tenants"
    parser.add_argument("--keep", type=Path, default=kept, help="folder for graphs of findings")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Ask graph after graph for so long."""
    graphs, calls, broken = Counter[str](), Counter[str](), list[str]()
    deadline, seed = time.monotonic() + 60 * options.minutes, options.seed
    with tempfile.TemporaryDirectory(prefix="braid-tenants-") as name:
        start = partial(ServerProcess, Path(name) / "store", command=BRAID)
        server = start(BRAID_LOG_LEVEL="INFO", BRAID_MAX_BATCH_WAIT_MS="20").start()
        try:
            while not graphs or time.monotonic() < deadline:
                subjects = [subject(each) for each in range(seed, seed + AT_ONCE)]
                with server.client() as client:
                    for one, ends in _asked(client, subjects, graphs):
                        calls += ends
                        if ends[FOREIGN]:
                            broken.append(_finding(client, one, ends, options.keep))
                    for one in subjects:
                        client.delete(one.name)
                seed += AT_ONCE
        finally:
            server.end()
    if not graphs[f"apart, {SHARED}"]:
        broken.append("no batch of several requests was seen")
    return {"graphs": dict(sorted(graphs.items())), "answers": dict(calls), "broken": broken}


def _asked(
    client: Client, subjects: Sequence[Subject], graphs: Counter[str]
) -> Iterator[tuple[Subject, Counter[str]]]:
    """Let all tenants ask; yields how the requests to each graph that is served ended."""
    options: dict[str, Any] = {"batch_sizes": SIZES, "planner": "sequential"}
    jobs = [client.register(one.name, one.data, **options) for one in subjects]
    waits = graphs["rounds"] % 4 == 3
    served = [one for one in subjects if _imported(client, one.name) is ModelState.SERVING]
    graphs.update({"rounds": 1, "refused": len(subjects) - len(served)})
    stop = threading.Event()
    tenant = partial(_tenant, address=client.address, subjects=served, stop=stop)
    with ThreadPoolExecutor(TENANTS) as pool:
        tenants = pool.map(tenant, range(TENANTS if served else 0))
        time.sleep(ASKED_S if served else 0)
        for job in jobs if waits else ():
            list(client.watch_job(job.id))
        stop.set()
    counts = sum(tenants, Counter[tuple[str, str]]())
    for one in served:
        own = Counter({end: count for (name, end), count in counts.items() if name == one.name})
        graphs[f"{one.kind}, served"] += 1
        graphs[f"{one.kind}, batched by report"] += client.model(one.name).batched
        graphs[f"{one.kind}, {SHARED}"] += own[SHARED] > 0
        yield one, own


def _imported(client: Client, name: str) -> ModelState:
    """State of a model once its import has ended."""
    while (state := client.model(name).state) is ModelState.LOADING:
        time.sleep(0.05)
    return state


def _finding(client: Client, one: Subject, ends: Counter[str], folder: Path) -> str:
    """Keep a graph; returns what was wrong, also where each request was the only one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{one.name}.onnx"
    file.write_bytes(one.data)
    alone = [end for asked in one.asked for each in asked for end in ask(client, one, each)]
    finding = (
        f"{one.name} ({', '.join(one.drawn.mixes) or 'rows are apart'}): {ends[FOREIGN]} of "
        f"{ends[FOREIGN] + ends[OWN]} answers are not the request's own, "
        f"{alone.count(FOREIGN)} of {len(alone)} where nobody else asked; {file}"
    )
    print(f"FINDING: {finding}", flush=True)
    return finding
