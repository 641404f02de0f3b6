"""Rates and quantiles of requests: of the last minute, and one point each ten seconds.

Looks are taken when a page is viewed, at most one a second; the first view of a while has nothing
to compare with and says so. Points of the last ten minutes are kept by ``run``.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from braid.server.observability.series.requests import RequestMetrics

WINDOW_SECONDS = 60.0
MIN_SECONDS = 1.0
POINT_SECONDS, MOST_POINTS = 10.0, 60

Key = tuple[str, str]
"""Model name and version."""

ALL: Key = ("", "")
"""All requests."""


@dataclass(slots=True)
class _Counts:
    """Counts of one model's requests at one moment."""

    outcomes: Counter[str] = field(default_factory=Counter)
    buckets: Counter[float] = field(default_factory=Counter)  # upper bound -> requests, cumulative


_Look = tuple[float, dict[Key, _Counts]]


@dataclass(frozen=True, slots=True)
class ModelRates:
    """Rates of one model. Durations in seconds; None where there were no requests."""

    requests_per_s: float
    failures_per_s: float
    p50_s: float | None
    p99_s: float | None


class Point(NamedTuple):
    """Latencies of the requests of ten seconds."""

    age_s: float
    p50_s: float
    p99_s: float


class Rates:
    """Looks of the last minute, and points. Each is called from one thread at a time."""

    def __init__(self, requests: RequestMetrics, clock: Callable[[], float] = monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._rates: Mapping[Key, ModelRates] = {}  # at the last look
        self._points: dict[Key, deque[Point]] = {}  # ages: moments of the clock
        self._counted: _Look = (clock(), self._counts())
        self._looks = deque([self._counted])

    async def run(self) -> None:
        while True:
            await asyncio.sleep(POINT_SECONDS)
            await asyncio.to_thread(self.keep)  # hundreds of models have many series
            self._remember(self._counted)

    def keep(self) -> None:
        """Keep a point of each model that was asked since the last one."""
        before, self._counted = self._counted, (self._clock(), self._counts())
        self._points = {key: kept for key, kept in self._points.items() if key in self._counted[1]}
        for key, rates in self._since(before, self._counted).items():
            if rates.p50_s is not None and rates.p99_s is not None:
                points = self._points.setdefault(key, deque(maxlen=MOST_POINTS))
                points.append(Point(self._counted[0], rates.p50_s, rates.p99_s))

    def points(self, key: Key) -> list[Point]:
        """Return the points of the last ten minutes, oldest first."""
        now, kept = self._clock(), list(self._points.get(key, ()))  # at once: a thread appends
        points = [point._replace(age_s=now - point.age_s) for point in kept]
        return [point for point in points if point.age_s <= MOST_POINTS * POINT_SECONDS]

    def look(self) -> Mapping[Key, ModelRates]:
        """Return the rates of all models over the last minute, or since the start.

        Views within a second share one look.
        """
        now = self._clock()
        if now - self._looks[-1][0] >= MIN_SECONDS:
            self._remember((now, self._counts()))
        return self._rates

    def _remember(self, look: _Look) -> None:
        while len(self._looks) > 1 and self._looks[1][0] < look[0] - WINDOW_SECONDS:
            self._looks.popleft()
        self._looks.append(look)
        self._rates = self._since(self._looks[0], look)

    @staticmethod
    def _since(first: _Look, last: _Look) -> Mapping[Key, ModelRates]:
        seconds = last[0] - first[0]
        if seconds < MIN_SECONDS:
            return {}
        return {
            key: _activity(first[1].get(key, _Counts()), after, seconds)
            for key, after in last[1].items()
        }

    def _counts(self) -> dict[Key, _Counts]:
        total = _Counts()
        counts = {ALL: total}
        for series in list(self._requests.models.values()):
            its = _Counts(
                Counter(series.outcomes), Counter(dict(series.duration_seconds.buckets()))
            )
            counts[series.labels] = its
            if its.outcomes:
                total.outcomes.update(its.outcomes)
                total.buckets.update(its.buckets)
        return counts


def _activity(before: _Counts, after: _Counts, seconds: float) -> ModelRates:
    done = after.outcomes - before.outcomes
    total = sum(done.values())
    buckets = [
        (bound, count - before.buckets.get(bound, 0))
        for bound, count in sorted(after.buckets.items())
    ]
    return ModelRates(
        total / seconds,
        (total - done["OK"]) / seconds,
        quantile(0.5, buckets),
        quantile(0.99, buckets),
    )


def quantile(q: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """Return a quantile of cumulative buckets, by linear interpolation as in Prometheus."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank, low, below = q * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == float("inf"):
                return low
            share = (rank - below) / (count - below) if count > below else 1.0
            return low + (bound - low) * share
        low, below = bound, count
    return low
