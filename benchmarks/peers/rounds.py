"""The comparison of one model: all servers up, loaded in turns, the order changing by rounds.

    closed loops   round 1: a b c   round 2: b c a   ...      for each number of clients
    open loops     the same, at parts of the best capacity that the closed loops found

Servers that use processor time without requests would disturb the others: they run in each round
alone, after the others' turns, started and stopped each time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from benchmarks.load.children import ChildFailed
from benchmarks.peers.load.calls import CallFailed
from benchmarks.peers.load.client import ClientProcess
from benchmarks.peers.records import ECHO, Case, Load, Turn
from benchmarks.peers.stands import Pace, Stand
from benchmarks.states import in_state

RESTLESS_CORES = 0.03
"""Cores used without requests from which on a server is up only while it is loaded."""
_ANSWERS, _ANSWERS_EACH = 12, 2.5
"""That the fastest server gives in one turn at least, together and to each client."""
_SETTLE_S, _IDLE_S = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Course:
    """What is measured, for how long."""

    rounds: int
    clients: Sequence[int]  # of closed loops
    parts: Sequence[float]  # of the best capacity
    warmup_s: float
    measure_s: float  # at least; longer for slow models
    state: str = ""  # of the cores, in which rounds are held; empty: any


@contextmanager
def started(stands: Sequence[Stand]) -> Iterator[None]:
    """Start ``stands`` one after the other; those that cannot are marked as failed."""
    try:
        for stand in stands:
            with _failing(stand):
                _say(f"starting {stand.contender.name}")
                stand.start()
        _stop_restless(stands)
        yield
    finally:
        for stand in stands:
            stand.stop()


def run_course(course: Course, stands: Sequence[Stand], clients: ClientProcess, case: Case) -> None:
    """Measure ``stands``, which are started, and add the turns to ``case``."""
    fastest_s = min((s.unloaded_s for s in stands if s.unloaded_s), default=0.0)
    closed = [
        (Load(clients=count), _pace(course, fastest_s * max(_ANSWERS, _ANSWERS_EACH * count)))
        for count in course.clients
    ]
    _rounds(course, closed, stands, clients, case)
    case.capacity_per_s = _capacity(case.turns)
    pace = _pace(course, fastest_s * _ANSWERS)
    arrivals = [
        (Load(part=part), replace(pace, rate_per_s=part * case.capacity_per_s))
        for part in course.parts
        if case.capacity_per_s
    ]
    _rounds(course, arrivals, stands, clients, case)


def _pace(course: Course, least_s: float) -> Pace:
    return Pace(course.warmup_s + least_s / _ANSWERS, max(course.measure_s, least_s))


def _rounds(
    course: Course,
    loads: Sequence[tuple[Load, Pace]],
    stands: Sequence[Stand],
    clients: ClientProcess,
    case: Case,
) -> None:
    quiet = [stand for stand in stands if not _is_restless(stand)]
    restless = [stand for stand in stands if _is_restless(stand)]

    def turn(stand: Stand, number: int, load: Load, pace: Pace) -> None:
        if not stand.row.failed:
            with _failing(stand):
                case.turns.append(stand.turn(load, number, pace, clients))
                _say(_progress(case, case.turns[-1]))

    def hold(number: int) -> None:
        for load, pace in loads:
            for stand in _rotated(quiet, number):
                turn(stand, number, load, pace)
        for stand in restless:
            with _failing(stand):
                stand.start()
            for load, pace in loads:
                turn(stand, number, load, pace)
            stand.stop()

    for number in range(course.rounds if loads else 0):
        before = len(case.turns)
        in_state(course.state, partial(hold, number), partial(_forget, case.turns, before))


def _forget(turns: list[Turn], first: int) -> None:
    del turns[first:]


def _rotated(stands: Sequence[Stand], number: int) -> list[Stand]:
    """Another one first in each round, every second round backwards."""
    first = number // 2 % max(1, len(stands))
    order = [*stands[first:], *stands[:first]]
    return order if number % 2 == 0 else order[::-1]


@contextmanager
def _failing(stand: Stand) -> Iterator[None]:
    """Mark ``stand`` as failed if its server ends or answers wrongly."""
    try:
        yield
    except (ChildFailed, CallFailed) as error:
        _say(f"{stand.contender.name} failed: {error}")
        stand.fail(str(error))


def _stop_restless(stands: Sequence[Stand]) -> None:
    """Measure what each uses without requests; stop those that use too much."""
    up = [stand for stand in stands if not stand.row.failed]
    time.sleep(_SETTLE_S)
    before = [(stand.cpu_s, time.perf_counter()) for stand in up]
    time.sleep(_IDLE_S)
    for stand, (cpu_s, since) in zip(up, before, strict=True):
        used = (stand.cpu_s - cpu_s) / (time.perf_counter() - since)
        stand.row.idle_cores = round(used, 3)
        if _is_restless(stand):
            _say(f"{stand.contender.name} uses {used:.2f} cores without requests")
            stand.stop()


def _is_restless(stand: Stand) -> bool:
    return stand.row.idle_cores > RESTLESS_CORES


def _capacity(turns: Sequence[Turn]) -> float:
    """The most requests per second that a peer answers under some load, median of the rounds."""
    rates: dict[tuple[str, Load], list[float]] = {}
    for turn in turns:
        if not turn.errors and turn.contender != ECHO:
            rates.setdefault((turn.contender, turn.load), []).append(turn.requests_per_s)
    return max((median(values) for values in rates.values()), default=0.0)


def _progress(case: Case, turn: Turn) -> str:
    text = (
        f"{case.model} {case.batching}, {turn.load!s:10} round {turn.round + 1}: "
        f"{turn.contender:22} p50 {turn.p50_us / 1000:8.2f} ms  p99 {turn.p99_us / 1000:8.2f} ms"
        f"  {turn.requests_per_s:7.1f} /s"
    )
    return text + (f"  ERRORS {dict(turn.errors)}" if turn.errors else "")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)
