"""Expected latencies of one model's batches on one device, by how they run.

Latencies are measured, never set: each starts as the schedule's, and follows what batches really
take. A size that was neither scheduled nor seen is assumed to be as cheap as the known ones allow,
so that it is tried. What has not run for many batches is forgotten: it is expected as the schedule
has it again, and the next batch that runs so decides. So a slow moment does not keep it from
running for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from braid.core.cover import Cover

if TYPE_CHECKING:
    from braid.server.inference.shape_latencies import ShapeTimes

UNKNOWN_S = 0.005
"""Latency of every size while nothing at all is known."""

SMOOTHING = 0.1  # weight of the latest observation
OF_ALL_SHAPES = 0.2  # the same, of what is learned from few runs in many shapes
OUTLIER = 4.0  # one observation moves the belief by no more than if it were this many times it
NOTICED = 0.05  # relative change after which decisions are made anew

HANDOVER_GROWTH = 1.01
"""What a batch costs beside its computing is the least seen, times so much for each batch since: of
large batches it is mostly the copying of rows, which is the same in small ones."""

HANDOVER_NOTICED = 1.25  # change after which rows are cut anew

FORGOTTEN_AFTER = 128
"""Batches after which what was learned of ways that did not run among them is forgotten."""


def surprise_of(seconds: float, expected_s: float, smoothing: float = SMOOTHING) -> float:
    """Return the part by which a belief, above 0, grows after a run that took ``seconds``."""
    return smoothing * (min(seconds / expected_s, OUTLIER) - 1)


class Way(NamedTuple):
    """How batches run: their size, and how many the device runs side by side."""

    size: int
    beside: int = 1  # 1: one after the other, each on all threads

    @property
    def rows(self) -> int:
        return self.size * self.beside


class LatencyTable:
    """Expected seconds of a batch, by batch size and by how many run side by side."""

    def __init__(self, sizes: Sequence[int], crowd: ShapeTimes | None = None) -> None:
        """``crowd``: of the model; None: its batches run as is best for each."""
        self._crowd = crowd
        self.sizes = tuple(sorted(sizes))
        self.revision = 0  # of the latencies, as far as decisions can tell
        self._by_way: dict[Way, float] = {}
        self._first: dict[Way, float] = {}  # as last set, not learned
        self._batches = 0  # that were observed
        self._learned_at: dict[Way, int] = {}  # the last batch that ran so
        self._forgotten: set[Way] = set()  # of which the next batch decides
        self._seconds: dict[int, float] = {}  # of other sizes, as it is asked for
        self._told: dict[Way, float] = {}  # as of ``revision``
        self._sizes_for: dict[int, int] = {}  # by rows, as of ``revision``
        self._covers: dict[bool, Cover] = {}  # with ``beside`` or without, as of ``revision``
        self._cuts: Cover | None = None  # of a request's rows, each batch with its handover
        self._handover_s = inf  # of a batch, beside its computing ...
        self._cut_handover_s = 0.0  # ... as of ``_cuts``
        self.beside: tuple[Way, ...] = ()
        """Ways of running batches side by side, smallest first."""

    @property
    def ways(self) -> tuple[Way, ...]:
        return (*map(Way, self.sizes), *self.beside)

    @property
    def is_all_beside(self) -> bool | None:
        """Whether, while several requests wait, all run side by side, or none; None: the best."""
        return self._crowd.goes_beside if self._crowd is not None and self.beside else None

    def add(self, size: int) -> None:
        """Let batches of one size more be formed."""
        self.sizes = tuple(sorted({*self.sizes, size}))
        self._revise()

    def expect(self, size: int, seconds: float, beside: int = 1) -> None:
        """Set the latency of a size: a schedule was made, or another plan serves."""
        assert seconds > 0
        way = Way(size, beside)
        self._by_way[way] = self._first[way] = seconds
        self._learned_at[way] = self._batches
        self._forgotten.discard(way)
        if beside > 1 and way not in self.beside:
            self.beside = tuple(sorted((*self.beside, way)))
        self._seconds.clear()
        self._notice(way)

    def handed_over(self, seconds: float) -> None:
        """Learn what a batch took beside its computing, with the device idle before."""
        self._handover_s = min(self._handover_s * HANDOVER_GROWTH, seconds)
        now_s, told_s = self._handover_s, self._cut_handover_s
        if now_s > told_s * HANDOVER_NOTICED or told_s > now_s * HANDOVER_NOTICED:
            self._cut_handover_s, self._cuts = self._handover_s, None

    def forget_beside(self, size: int) -> None:
        """Run batches of a size one after the other only."""
        for way in [way for way in self.beside if way.size == size]:
            del self._by_way[way], self._first[way]
            self._forgotten.discard(way)
            self._revise()
        self.beside = tuple(way for way in self.beside if way.size != size)

    def observe(self, size: int, seconds: float, beside: int = 1) -> None:
        """Learn from a batch of ``size`` rows that took ``seconds``.

        If that is a surprise, half of it is put down to the device and not to the size: on a device
        that has become slower, sizes that have not run lately must not look fast beside the others.
        """
        if not seconds > 0:  # shorter than its clock tells: nothing to believe
            return
        self._seconds.clear()
        way = Way(size, beside)
        old = self._by_way.get(way)
        if old is None:
            if beside == 1 or way in self.beside:
                self._by_way[way], self._learned_at[way] = seconds, self._batches
                self._notice(way)
            return
        if way in self._forgotten:
            self._forgotten.discard(way)
            self._by_way[way] = seconds
            self._notice(way)
            self._forget_old(way)
            return
        surprise = surprise_of(seconds, old)
        for other in self._by_way:
            self._by_way[other] *= 1 + (surprise if other == way else surprise / 2)
            self._notice(other)
        self._forget_old(way)

    def _forget_old(self, ran: Way) -> None:
        """Expect what has not run for long as it was at first, beside what ``ran`` just now."""
        self._batches += 1
        self._learned_at[ran] = self._batches
        slower = self._by_way[ran] / self._first[ran] if ran in self._first else 1.0
        for way in list(self._by_way):
            if self._batches - self._learned_at[way] < FORGOTTEN_AFTER:
                continue
            self._learned_at[way] = self._batches
            if way in self._first:
                self._by_way[way] = self._first[way] * slower
                self._forgotten.add(way)
                self._notice(way)
            else:
                del self._by_way[way]
                self._told.pop(way, None)
                self._revise()

    def seconds(self, size: int, beside: int = 1) -> float:
        """Return the expected seconds of a batch of ``size`` rows, of ``beside`` at once."""
        known = self._by_way.get(Way(size, beside))
        if known is not None:
            return known
        if beside > 1:
            return self.seconds(size)
        expected_s = self._seconds.get(size)
        if expected_s is None:
            expected_s = self._seconds[size] = self._expected_s(size)
        return expected_s

    def _expected_s(self, size: int) -> float:
        """Return what follows from ``_by_way`` for a size that is not in it."""
        alone = {way.size: seconds for way, seconds in self._by_way.items() if way.beside == 1}
        smaller = [alone[other] for other in alone if other < size]
        if smaller:  # optimistic: no dearer than what is known
            return max(smaller)
        larger = min((other for other in alone if other > size), default=None)
        if larger is None:
            return UNKNOWN_S
        return alone[larger] * size / larger

    def size_for(self, rows: int) -> int:
        """Return the cheapest batch size that holds ``rows``, or the largest size."""
        cheapest = self._sizes_for.get(rows)
        if cheapest is None:
            if rows >= self.sizes[-1]:
                return self.sizes[-1]
            cheapest = min([size for size in self.sizes if size >= rows], key=self.seconds)
            self._sizes_for[rows] = cheapest
        return cheapest

    def way_for(self, rows: int, beside: int) -> Way:
        """Return the least way of ``beside`` batches that hold ``rows`` each, else one batch."""
        fitting = [way for way in self.beside if way.beside == beside and way.size >= rows]
        return min(fitting, default=Way(self.size_for(rows)))

    @property
    def seconds_per_row(self) -> float:
        """Seconds per row in the way that computes the most rows a second."""
        return min(self.seconds(*way) / way.rows for way in self.ways)

    def row_s(self, rows: int, *, side_by_side: bool) -> float:
        """Seconds per row of the best ways, side by side or others, for ``rows``; or infinite."""
        ways = self.beside if side_by_side else map(Way, self.sizes)
        each = (self.seconds(*way) / (min(way.size, rows) * way.beside) for way in ways)
        return min(each, default=inf)

    def clearing_s(self, rows: int, *, beside: bool = True) -> float:
        """Least seconds to run ``rows`` rows; without ``beside`` one batch after the other."""
        return self._cover(beside).least(rows) if rows > 0 else 0.0

    def first_size(self, rows: int) -> int:
        """Return the first of the sizes, one after the other, that answer ``rows`` rows soonest."""
        if self._cuts is None:
            each_s = [self._surely_s(Way(size)) + self._cut_handover_s for size in self.sizes]
            self._cuts = Cover([*zip(self.sizes, each_s, strict=True)])
        return self.sizes[self._cuts.first(rows)]

    def _cover(self, beside: bool) -> Cover:
        cover = self._covers.get(beside)
        if cover is None:
            ways = self.ways if beside else tuple(map(Way, self.sizes))
            cover = Cover([(way.rows, self._surely_s(way)) for way in ways])
            self._covers[beside] = cover
        return cover

    def _surely_s(self, way: Way) -> float:
        """Return what a batch takes at most, if a larger one is known: requests are not cut into
        sizes that were never seen where one is at hand that holds all rows.
        """
        if way not in self._by_way:
            larger = [s for w, s in self._by_way.items() if w.beside == 1 and w.size > way.size]
            if larger and way.beside == 1:
                return min(larger)
        return self.seconds(*way)

    def _notice(self, way: Way) -> None:
        seconds, told = self._by_way[way], self._told.get(way)
        if told is None or not (1 - NOTICED) * told <= seconds <= (1 + NOTICED) * told:
            self._told[way] = seconds
            self._revise()

    def _revise(self) -> None:
        self.revision += 1
        self._sizes_for.clear()
        self._covers.clear()
        self._cuts = None
