"""Plans that mix engines under load, with calls that are cancelled: does anything ever hang?

    register ──> stop ──> schedules of plans with parts in engines ──> start
    callers ──ask, cancel, give up──> server ──all have ended──> each plan answers once more, idle

Lanes wait for each other inside a run, and engines bring threads of their own. So a run that was
begun has to end whatever becomes of its caller. Every answer is compared with ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import MIXED, Schedule
from braid.engine.cpu.device_key import ENGINES, installed_engines
from braid_client import BraidError, DeadlineExceeded, ResourceExhausted, RetryPolicy
from braid_client.aio import AsyncClient
from campaigns.traffic import LATE_S, Question, questions
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.contests import change_schedules
from tests.service.server_process import BRAID, ServerProcess

MODEL = "mixed"
THREADS = 2
SIZES = (1, 2, 4)
"""Batch sizes: regions in engines, branches on lanes, rows on lanes."""

CANCELLED, GIVES_UP = 0.3, 0.1
"""Parts of the calls that their callers cancel, and that have a deadline soon."""

SOON_S = 0.01
"""Seconds within which a call is cancelled or gives up: about what one takes under load."""

ANSWERED_S = 120.0
"""Seconds after which a call without an answer counts as one that hangs."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=20_000, help="calls that are begun")
    parser.add_argument("--callers", type=int, default=16, help="calls at once")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="braid-mixed-") as name:
        path = small_cnn(Path(name) / "cnn.onnx")
        server = ServerProcess(
            Path(name) / "store", command=BRAID, BRAID_LOG_LEVEL="INFO", BRAID_THREADS=str(THREADS)
        )
        try:
            serve_mixed(server, path)
            return load(server, path, options.runs, options.callers, options.seed)
        finally:
            server.end()


def serve_mixed(server: ServerProcess, path: Path) -> None:
    """Start a server with the model, each of whose batch sizes has a plan with parts in engines."""
    server.start().register({MODEL: path}, SIZES)
    assert server.stop() == 0
    change_schedules(server.store, mixed)
    server.start()


def mixed(schedule: Schedule) -> Schedule:
    """The schedule with a plan with parts: of regions, branches or rows, by its batch size.

    Units: a convolution, three that read it, and three that add up what the last one makes.
    """
    units = tuple(range(len(schedule.unit_names)))
    assert len(units) == 7
    one, other = (list(installed_engines()) * 2)[:2]
    in_a_row = tuple(Launch(unit, 0) for unit in units)
    regions, branches, _ = SIZES
    match schedule.key.batch_size:
        case size if size == regions:
            cut = _part((1, 2, 3), one, THREADS), _part(units[4:], other, THREADS)
            plan = StreamPlan(in_a_row, 1, parts=cut)
        case size if size == branches:
            beside = tuple(Launch(unit, int(unit == 3)) for unit in units)
            cut = _part((1, 2), one, 1), _part((3,), other, 1)
            plan = StreamPlan(beside, 2, (1, 4), parts=cut)
        case size:
            half = size // 2
            lanes = _part(units, other, 1, half), _part(units, "", 1, size - half)
            plan = StreamPlan(in_a_row, 1, parts=lanes)
    seen = replace(schedule.provenance, promoted=True, reason="", side_by_side=None)
    return replace(schedule, planner="regions", plan=plan, stages=(), provenance=seen)


def _part(units: Sequence[int], engine: str, threads: int, rows: int = 0) -> EnginePart:
    version = ENGINES[engine].version if engine else ""
    return EnginePart(tuple(units), engine, version, threads, rows)


@dataclass(slots=True)
class Load:
    """Calls of many callers, and what became of them."""

    asked: Sequence[Question]
    left: int
    outcomes: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)  # of right answers, by plan and rows
    surprises: Counter[str] = field(default_factory=Counter)

    async def caller(self, client: AsyncClient, chance: random.Random) -> None:
        while self.left > 0:
            self.left -= 1
            began = time.monotonic()
            outcome = await self._call(client, chance)
            self.outcomes[outcome] += 1
            if time.monotonic() - began > ANSWERED_S + LATE_S:
                self.surprises[f"{outcome}, late"] += 1

    async def _call(self, client: AsyncClient, chance: random.Random) -> str:
        question, kind = chance.choice(self.asked), chance.random()
        soon_s = chance.uniform(0.0, SOON_S)
        gives_up = CANCELLED <= kind < CANCELLED + GIVES_UP
        call = asyncio.ensure_future(
            client.infer(
                MODEL, {"x": question.x}, timeout_s=max(soon_s, 1e-3) if gives_up else ANSWERED_S
            )
        )
        if kind < CANCELLED:
            await asyncio.wait([call], timeout=soon_s)
            call.cancel()
        try:
            answer = await call
        except asyncio.CancelledError:
            return "CANCELLED"
        except (DeadlineExceeded, ResourceExhausted) as error:
            if not gives_up:  # one that does is refused at once where its time cannot suffice
                self.surprises[f"hangs: {error}"] += 1
            return type(error).__name__
        except BraidError as error:
            self.surprises[str(error)] += 1
            return "failed"
        if not question.is_answered_by(answer.outputs["y"]):
            self.surprises[f"wrong under {answer.plan_id}"] += 1
            return "WRONG"
        self.plans[answer.plan_id] += 1
        return "OK"


def load(server: ServerProcess, path: Path, runs: int, callers: int, seed: int) -> dict[str, Any]:
    """Load a server that ``serve_mixed`` started; what was seen, with what must not be."""
    calls = Load(questions(MODEL, path), runs)
    began = time.monotonic()
    asyncio.run(_callers(server.address, calls, callers, seed))
    took_s = time.monotonic() - began
    broken = [f"{count} times {what}" for what, count in calls.surprises.items()]
    with suppress(AssertionError):  # what does not come to rest is told below
        until(lambda: _waiting(server) == 0, ANSWERED_S)
    if left := _waiting(server):
        broken.append(f"{left:.0f} requests wait though all callers have gone")
    with server.client() as client:
        ran = {client.infer(MODEL, {"x": _of_rows(calls.asked, size).x}).plan_id for size in SIZES}
    if not all(plan.startswith(MIXED) for plan in ran):
        broken.append(f"at last ran {sorted(ran)}, and not mixed plans only")
    restarts = server.metric("braid_worker_restarts_total")
    if restarts:
        broken.append(f"the worker was started again {restarts:.0f} times")
    if code := server.stop():
        broken.append(f"exit code {code}")
    return {
        "runs": runs,
        "a second": round(runs / took_s),
        "outcomes": dict(calls.outcomes),
        "plans": dict(calls.plans),
        "engines": sorted({ONNXRUNTIME, *installed_engines()}),
        "broken": broken,
    }


async def _callers(address: str, calls: Load, callers: int, seed: int) -> None:
    async with AsyncClient(address, retry=RetryPolicy(max_attempts=1)) as client:
        chances = [random.Random(f"{seed} {number}") for number in range(callers)]
        await asyncio.gather(*(calls.caller(client, chance) for chance in chances))


def _of_rows(asked: Sequence[Question], rows: int) -> Question:
    return next(question for question in asked if len(question.x) == rows)


def _waiting(server: ServerProcess) -> float:
    return server.metric("braid_queue_depth_requests")
