"""What is measured of servers that are up: first requests, loads, and shapes without end.

Contenders take turns with the same requests; after its turn each gets time to finish what it does
without requests, so that a preparation beside does not count against the next one.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks.reports import percentile
from benchmarks.shapes.contenders import Neighbour, Stand
from benchmarks.shapes.models import Case, Oracle, Shape
from benchmarks.shapes.traffic import Requests, Sent, send
from benchmarks.states import in_state

REPEATED = 8
"""Shapes that come again and again beside the neighbour, before the new ones do."""

MARKS = 20
"""How often memory is looked at while new shapes come."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds of every phase."""

    limit_s: float  # of one contender's turn
    settle_s: float  # after it
    checked: int  # answers of a turn that are compared with ONNX Runtime's


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender under one load in one round. Latencies are in microseconds."""

    contender: str
    distribution: str
    clients: int
    round: int
    answers: int
    errors: Mapping[str, int]
    seconds: float
    p50_us: float
    p99_us: float
    requests_per_s: float
    settled_s: float  # idle that long after the last answer


@dataclass(frozen=True, slots=True)
class First:
    """First requests of new shapes beside repeated ones of the same shapes."""

    contender: str
    shapes: int
    errors: Mapping[str, int]
    first_us: float  # median over the shapes
    repeated_us: float  # the same, of each shape's p50
    ratio: float  # median over the shapes of first by repeated
    ratio_p90: float
    ratio_worst: float


@dataclass(slots=True)
class Churn:
    """Ever new shapes beside a neighbour. ``memory_mib`` is of all processes (PSS)."""

    contender: str
    asked: int
    answered: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    memory_mib: list[tuple[int, float]] = field(default_factory=list)  # after that many shapes
    neighbour_p99_us: dict[str, float] = field(default_factory=dict)  # alone, repeated, new
    neighbour_errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def growth(self) -> float:
        """Memory at the end over that after a quarter of the shapes."""
        after = [mib for shapes, mib in self.memory_mib if shapes >= self.answered / 4]
        return after[-1] / after[0]

    def slowed(self, beside: str) -> float:
        """The neighbour's p99 while new shapes come over that in another state."""
        return self.neighbour_p99_us["new"] / self.neighbour_p99_us[beside]


def warm_up(stands: Sequence[Stand], case: Case, loads: Sequence[Load], pace: Pace) -> None:
    """Send requests that are not measured, other ones than any round has."""
    for stand in _up(stands):
        for load in loads:
            with stand.failing():
                messages = list(load.drawn(case, -1).messages())
                send(stand.target, messages, load.clients, pace.limit_s, set())


def first_requests(
    stands: Sequence[Stand], requests: Requests, repeats: int, pace: Pace, oracle: Oracle
) -> Iterator[First]:
    """Send every shape once, and later ``repeats`` times, from one client."""
    messages = list(requests.messages())
    for stand in _up(stands):
        with stand.failing():
            yield _first(stand, requests, messages, repeats, pace, oracle)


def _first(
    stand: Stand,
    requests: Requests,
    messages: Sequence[bytes],
    repeats: int,
    pace: Pace,
    oracle: Oracle,
) -> First:
    first = send(stand.target, messages, 1, pace.limit_s, requests.sample(pace.checked))
    stand.settle(pace.settle_s)
    requests.check(first, oracle)
    again: dict[int, list[float]] = {}
    for number in range(repeats):
        order = sorted(first.latency_us)
        random.Random(number).shuffle(order)
        repeated = send(stand.target, [messages[at] for at in order], 1, pace.limit_s, set())
        first.errors += repeated.errors
        for at, latency_us in repeated.latency_us.items():
            again.setdefault(order[at], []).append(latency_us)
    stand.settle(pace.settle_s)
    usual = {at: median(latencies) for at, latencies in again.items()}
    ratios = [first.latency_us[at] / us for at, us in usual.items()]
    return First(
        contender=stand.name,
        shapes=len(ratios),
        errors=dict(first.errors),
        first_us=percentile([first.latency_us[at] for at in usual], 50),
        repeated_us=percentile(list(usual.values()), 50),
        ratio=percentile(ratios, 50),
        ratio_p90=percentile(ratios, 90),
        ratio_worst=percentile(ratios, 100),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """Requests by clients that share them, other ones in each round."""

    distribution: str
    clients: int
    requests: int

    def drawn(self, case: Case, round_number: int) -> Requests:
        """Draw the same ones in every run."""
        text = f"{self.distribution} {self.clients} {round_number}"
        seed = random.Random(text).getrandbits(32)
        return Requests(case, case.drawn(self.distribution, self.requests, seed), seed)


def load_turns(
    stands: Sequence[Stand],
    case: Case,
    loads: Sequence[Load],
    rounds: int,
    pace: Pace,
    oracle: Oracle,
    state: str = "",
) -> Iterator[Turn]:
    """Let the contenders answer the same requests in turns, every second round backwards."""

    def hold(number: int) -> Iterator[Turn]:
        for load in loads:
            requests = load.drawn(case, number)
            messages = list(requests.messages())
            for stand in _up(stands if number % 2 == 0 else stands[::-1]):
                with stand.failing():
                    kept = requests.sample(pace.checked)
                    sent = send(stand.target, messages, load.clients, pace.limit_s, kept)
                    settled_s = stand.settle(pace.settle_s)
                    requests.check(sent, oracle)
                    yield _turn(stand.name, load, number, sent, settled_s)

    for number in range(rounds):
        turns = hold(number)
        yield from in_state(state, partial(_listed, hold, number)) if state else turns


def _listed(hold: Callable[[int], Iterator[Turn]], number: int) -> list[Turn]:
    return list(hold(number))


def _turn(contender: str, load: Load, number: int, sent: Sent, settled_s: float) -> Turn:
    latencies = list(sent.latency_us.values())
    return Turn(
        contender=contender,
        distribution=load.distribution,
        clients=load.clients,
        round=number,
        answers=len(latencies),
        errors=dict(sent.errors),
        seconds=sent.seconds,
        p50_us=percentile(latencies, 50),
        p99_us=percentile(latencies, 99),
        requests_per_s=len(latencies) / sent.seconds,
        settled_s=round(settled_s, 1),
    )


def spread(shapes: Sequence[Shape], count: int) -> list[Shape]:
    """Return some of the shapes, at even distances by their elements.

    So runs of them are about as long as those of all: a neighbour waits for the longest ones.
    """
    ordered = sorted(shapes, key=math.prod)
    return [ordered[(2 * at + 1) * len(ordered) // (2 * count)] for at in range(count)]


def churn(
    stands: Sequence[Stand],
    requests: Requests,
    neighbour: Neighbour,
    quiet_s: float,
    pace: Pace,
    oracle: Oracle,
) -> Iterator[Churn]:
    """Send shapes that are all different from one client, beside a neighbour's requests.

    The neighbour's p99 is measured alone and beside a few shapes that come again and again, for
    ``quiet_s`` seconds each, and beside the new ones.
    """
    for stand in _up(stands):
        with stand.failing():
            yield _churn(stand, requests, neighbour, quiet_s, pace, oracle)


def _churn(
    stand: Stand,
    requests: Requests,
    neighbour: Neighbour,
    quiet_s: float,
    pace: Pace,
    oracle: Oracle,
) -> Churn:
    count = len(requests.shapes)
    row = Churn(stand.name, count)
    few = list(Requests(requests.case, spread(requests.shapes, REPEATED), 0).messages())
    errors: Counter[str] = Counter()

    def look(position: int) -> None:
        if (position + 1) % max(1, count // MARKS) == 0:
            row.memory_mib.append((position + 1, stand.server.memory_mib()))

    with neighbour.asking(stand) as alone:
        time.sleep(quiet_s)
    with neighbour.asking(stand) as repeated:
        until = time.perf_counter() + quiet_s
        while (left_s := until - time.perf_counter()) > 0:
            errors += send(stand.target, few, 1, left_s, set()).errors
    stand.settle(pace.settle_s)
    row.memory_mib.append((0, stand.server.memory_mib()))
    with neighbour.asking(stand) as new:
        kept = requests.sample(pace.checked)
        sent = send(stand.target, requests.messages(), 1, pace.limit_s, kept, look)
    stand.settle(pace.settle_s)
    row.answered, row.seconds = len(sent.latency_us), sent.seconds
    row.memory_mib.append((row.answered, stand.server.memory_mib()))
    requests.check(sent, oracle)
    row.errors = dict(errors + sent.errors)
    states = {"alone": alone, "repeated": repeated, "new": new}
    row.neighbour_p99_us = {
        name: percentile(samples.latency_us, 99) for name, samples in states.items()
    }
    row.neighbour_errors = dict(alone.errors + repeated.errors + new.errors)
    return row


def _up(stands: Sequence[Stand]) -> Iterator[Stand]:
    return (stand for stand in stands if not stand.failure)
