"""Load patterns over blocking calls, a thread for each client."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep

import numpy as np

from benchmarks.peers.load.calls import Call, CallFailed

WRONG = "WRONG_ANSWER"
_AFTER_FAILURE_S = 0.005

Clock = Callable[[], float]
"""Seconds, from any moment on; asked by every client's thread."""


@dataclass(slots=True)
class Samples:
    """What the clients saw after the warm-up."""

    seconds: float = 0.0
    answers_per_s: float = 0.0
    latency_us: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_json(cls, text: str) -> Samples:
        document = json.loads(text)
        return cls(**{**document, "errors": Counter(document["errors"])})

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__})

    def merge(self, other: Samples) -> None:
        """Add what was seen in a later turn."""
        self.seconds += other.seconds
        self.errors.update(other.errors)
        self.latency_us.extend(other.latency_us)


class Window:
    """The time of the measurement, and what was seen in it."""

    def __init__(self, warmup_s: float, measure_s: float, clock: Clock = perf_counter) -> None:
        self.clock = clock
        self.origin = clock()
        self.begin = self.origin + warmup_s
        self.end = self.begin + measure_s
        self.samples = Samples(seconds=measure_s)
        self.ends: dict[Call, list[float]] = {}  # of right answers in time
        self._lock = threading.Lock()

    def timed(self, call: Call, number: int, since: float, is_counted: bool | None = None) -> None:
        """Make one call; its latency counts from ``since``, in seconds of the clock.

        Counted are latencies of calls that end after the warm-up, unless ``is_counted`` says.
        """
        check, failure = None, ""
        try:
            check = call(number)
        except CallFailed as error:
            failure = str(error)
        now = self.clock()
        if is_counted is None:
            is_counted = now >= self.begin
        if check is not None and not check():
            failure = WRONG
        with self._lock:
            if failure:
                self.samples.errors[failure] += 1  # of the warm-up, too
            else:
                if self.begin <= now < self.end:
                    self.ends.setdefault(call, []).append(now)
                if is_counted:
                    self.samples.latency_us.append(round((now - since) * 1e6))
        if failure:
            sleep(_AFTER_FAILURE_S)


def closed_loop(
    calls: Sequence[Call], warmup_s: float, measure_s: float, clock: Clock = perf_counter
) -> Samples:
    """Let each of ``calls`` be a client that waits for its answer before it asks again.

    Latencies are of all answers that end after the begin of the measurement, also of those after
    its end: dropping them would drop the slow ones.
    """
    window = Window(warmup_s, measure_s, clock)

    def client(index: int) -> None:
        number = index
        while (now := clock()) < window.end:
            window.timed(calls[index], number, now)
            number += 1

    _in_threads(client, len(calls))
    window.samples.answers_per_s = closed_rate(
        [window.ends.get(call, []) for call in calls], measure_s
    )
    return window.samples


def closed_rate(ends: Sequence[Sequence[float]], seconds: float) -> float:
    """Answers per second of clients that never pause, from the moments of each one's answers.

    The sum over the clients of answers after the first by the time since that: where batches of
    answers come together, counting in a fixed time is off by up to a batch. That is done where a
    client has fewer than two answers.
    """
    if all(len(times) > 1 for times in ends):
        return sum((len(times) - 1) / (times[-1] - times[0]) for times in ends)
    return sum(map(len, ends)) / seconds


def open_loop(
    calls: Sequence[Call], rate_per_s: float, warmup_s: float, measure_s: float, seed: int
) -> Samples:
    """Begin calls at Poisson moments, ``rate_per_s`` of them, whatever became of the others.

    At most one call of each of ``calls`` is under way, the next waits; a latency counts from the
    moment when the call was due.
    """
    window = Window(warmup_s, measure_s)
    due_calls: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()

    def arrivals() -> None:
        random = np.random.default_rng(seed)
        due, number = window.origin, 0
        while (due := due + random.exponential(1 / rate_per_s)) < window.end:
            if (pause := due - perf_counter()) > 0:
                sleep(pause)
            due_calls.put((number, due))
            number += 1
        for _ in calls:
            due_calls.put(None)

    def client(index: int) -> None:
        if index == len(calls):
            return arrivals()
        while (call := due_calls.get()) is not None:
            number, due = call
            window.timed(calls[index], number, due, is_counted=due >= window.begin)
        return None

    _in_threads(client, len(calls) + 1)
    window.samples.answers_per_s = sum(map(len, window.ends.values())) / measure_s
    return window.samples


def _in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=[index], daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
