"""Seeded hosts: latencies that each candidate would have had for each request.

    kind, seed ──> times of runs ──> state of the host at each ──> latency_us [run, candidate]

All policies are replayed on the same latencies, so the best fixed candidate is known in hindsight.
Times of runs follow a nominal pace: a slower choice does not delay the host's changes. Between
requests that lie apart there are runs on recorded inputs, which only idle time can use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from braid.server.models.idle_pairs import ROUND_S

REQUESTS = 3000
SCREENING = 180
"""Runs of the registration, back to back, before the first request."""

PAIR = 9
"""Runs of a pair in idle time."""

CORES_NS = np.array([30.0, 45.0, 70.0, 370.0])
"""Distance of two cores of the same virtual machine, as seen within minutes."""

CHANGE_US = 200.0, 700.0
"""What the first run after a change of candidates costs, as measured in service (decision 0092)."""

CHANGE_LASTS = 0.4
"""Cost of a run after a change over that of the run before it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Host:
    """One host with its candidates and requests; the first candidate is the own sequential plan."""

    screening_us: Floats  # [SCREENING, candidate], without the cost of a change
    latency_us: Floats  # [run, candidate], without it, too
    at_s: Floats  # end of each run
    is_request: NDArray[np.bool_]  # of each run; others are of idle time
    change: tuple[float, ...]  # relative cost of the first runs after a change

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple("abc"[: self.latency_us.shape[1]])


def host_of(kind: str, seed: int, requests: int = REQUESTS) -> Host:
    """The host of a kind and a seed, until so many of its requests have been served."""
    random = np.random.default_rng([KINDS.index(kind), seed])
    count = int(random.integers(2, 4))
    base_us = _log_uniform(random, 500.0, 80_000.0)
    candidates_us = base_us * _ratios(random, count)
    at_s, is_request = _times(random, REQUESTS, base_us / 1e6)
    runs = len(at_s)
    noise = _log_uniform(random, 0.01, 0.12) * random.standard_normal((runs, count))
    tails = (random.random((runs, count)) < 0.01) * random.exponential(0.3, (runs, count))
    logs = np.log(candidates_us) + noise + tails + CHANGES[kind](random, at_s, count)
    change = _log_uniform(random, *CHANGE_US) / base_us
    latency_us = np.exp(logs)
    served = slice(SCREENING, int(np.flatnonzero(is_request)[requests - 1]) + 1)
    costs = tuple(change * CHANGE_LASTS**run for run in range(5))
    return Host(latency_us[:SCREENING], latency_us[served], at_s[served], is_request[served], costs)


def _log_uniform(random: Generator, least: float, most: float) -> float:
    return float(np.exp(random.uniform(np.log(least), np.log(most))))


def _ratios(random: Generator, count: int) -> Floats:
    """Latencies over the best one's: of the others 3 of 10 are equal to it, 5 near, 2 far."""
    ratios = np.ones(count)
    for other in range(1, count):
        drawn = random.random()
        if drawn < 0.3:
            ratios[other] += random.uniform(0.0, 0.02)
        elif drawn < 0.8:
            ratios[other] += _log_uniform(random, 0.02, 0.3)
        else:
            ratios[other] += _log_uniform(random, 0.3, 1.5)
    return random.permutation(ratios)


def _times(random: Generator, requests: int, base_s: float) -> tuple[Floats, NDArray[np.bool_]]:
    """End of each run, and whether it is a request's.

    The first caller comes within 30 s of READY. Then half of the hosts have requests back to back,
    the others have gaps. A gap of twice a pair's time may have a pair, one each half second.
    """
    gaps_s = np.zeros(requests)
    if random.random() < 0.5:
        gaps_s += random.exponential(_log_uniform(random, 0.01, 2.0), requests)
    gaps_s[0] = random.uniform(0.0, 30.0)
    screening_s = base_s * np.arange(1, SCREENING + 1)
    requests_s = screening_s[-1] + np.cumsum(gaps_s + base_s)
    looks = np.diff(np.floor(np.cumsum(gaps_s) / ROUND_S), prepend=0.0)
    pairs = np.minimum(gaps_s / (2 * PAIR * base_s), looks).astype(int)
    begins_s = np.repeat(requests_s - base_s - gaps_s, pairs)
    places = np.arange(len(begins_s)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    begins_s += places * np.repeat(gaps_s / np.maximum(pairs, 1), pairs)
    idle_s = (begins_s[:, None] + base_s * np.arange(1, PAIR + 1)).ravel()
    at_s = np.concatenate([screening_s, requests_s, idle_s])
    order = np.argsort(at_s, kind="stable")
    is_request = (order >= SCREENING) & (order < SCREENING + requests)
    return at_s[order], is_request


def _constant(random: Generator, at_s: Floats, count: int) -> Floats:
    return np.zeros((len(at_s), count))


def _flap(random: Generator, at_s: Floats, count: int) -> Floats:
    """Two or three states; a candidate is the slower the more its threads meet."""
    states = random.choice(CORES_NS, int(random.integers(2, 4)), replace=False)
    meetings = random.uniform(0.0, 1.0, count)  # 370 ns: 0 to 97 % slower
    logs = 0.68 * meetings * (states[:, None] - 30.0) / 340.0
    logs += random.normal(0.0, 0.04, logs.shape)
    dwell_s = _log_uniform(random, 0.5, 20.0)
    changes = np.cumsum(random.exponential(dwell_s, 16 + int(3 * at_s[-1] / dwell_s)))
    steps = random.integers(1, len(states), len(changes) + 1)
    visited = np.cumsum(steps) % len(states)
    return np.asarray(logs[visited[np.searchsorted(changes, at_s)]])


def _drift(random: Generator, at_s: Floats, count: int) -> Floats:
    """A common random walk of 30 % over all requests, and one of 6 % of each candidate."""
    steps_s = np.diff(at_s, prepend=0.0)[:, None]
    steps = random.standard_normal((len(at_s), count + 1)) * np.sqrt(steps_s / at_s[-1])
    walks = np.cumsum(steps, axis=0)
    return np.asarray(0.3 * walks[:, :1] + 0.06 * walks[:, 1:])


def _bursts(random: Generator, at_s: Floats, count: int) -> Floats:
    """Other processes take cores: heavy-tailed in height (up to 8) and length (10 ms to 3 s).

    They take 1 to 10 % of the time, and slow each candidate by its own power of the height.
    """
    share = random.uniform(0.01, 0.10)
    lengths_s = np.minimum(0.01 * (1.0 + random.pareto(1.2, len(at_s))), 3.0)
    pauses_s = random.exponential(lengths_s.mean() * (1.0 / share - 1.0), len(lengths_s))
    starts_s = np.cumsum(pauses_s + lengths_s) - lengths_s
    heights = np.log1p(np.minimum(random.pareto(1.3, len(lengths_s)), 7.0))
    last = np.searchsorted(starts_s, at_s) - 1
    is_within = (last >= 0) & (at_s < starts_s[last] + lengths_s[last])
    height = np.where(is_within, heights[last], 0.0)
    return np.asarray(height[:, None] * random.uniform(0.5, 1.0, count))


def _day(random: Generator, at_s: Floats, count: int) -> Floats:
    """A slow sinusoid moves all candidates, and each by itself, so that their order changes."""
    periods = random.uniform(0.5, 2.0)
    phase = 2 * np.pi * (periods * at_s / at_s[-1] + random.random())
    common = random.uniform(0.0, 0.2) * np.sin(phase)
    shifts = random.uniform(0.0, 2 * np.pi, count)
    own = random.uniform(0.02, 0.12, count) * np.sin(phase[:, None] + shifts)
    return np.asarray(common[:, None] + own)


def _flap_and_bursts(random: Generator, at_s: Floats, count: int) -> Floats:
    return _flap(random, at_s, count) + _bursts(random, at_s, count)


CHANGES: Mapping[str, Callable[[Generator, Floats, int], Floats]] = {
    "constant": _constant,
    "flap": _flap,
    "drift": _drift,
    "bursts": _bursts,
    "day": _day,
    "flap and bursts": _flap_and_bursts,
}
"""Kind -> changes of latencies, as logarithms [run, candidate]."""

KINDS = tuple(CHANGES)
