"""Owner of shapes that no schedule was made for: each runs in a session or an own executable.

    run in the session ──pays──> its owner prepares an executable ──tried──> the way that serves

The session runs any shape, and nothing is prepared. A class gets an executable of its own when that
would have paid by now:

    seconds spent in the session  *  part of them to be saved  >=  seconds of a preparation

Both are means over the classes that were prepared; the part is first what a schedule's comparison
has measured. Where the seconds of the next run make it pay, that run waits for it. Both ways then
take turns on the runs of the class, so that both see the machine as it is, until one is chosen.

How an executable is prepared and run is left to ``other_shapes`` of a server and of the library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

from braid.core.errors import Unavailable
from braid.core.inputs import ShapeClass

MAX_USES = 512
"""Classes, each with a batch size, whose use is remembered."""

TRIALS = 5
"""Runs of both ways, in turns, whose medians decide between them."""

MARGIN = 0.05
"""Part of the session's time that an own executable has to save at least, as it takes memory."""

SAVED, LEAST_SAVED, PREPARATION_S = 0.3, 0.02, 0.2
"""First guesses; and the least part that is assumed, so that what never paid is tried again."""

LEARNING = 0.3

WAITING = 0.5
"""A preparation that a run waits for takes at most this part of what the run then takes."""

IN_SESSION = 8
"""One new class in so many runs in the session first, so that its seconds are known as of now."""

TO_MEASURE, AGAIN = 1 / 16, 1 / 64
"""Parts of new classes' time spent on preparations to measure their cost: first, and later."""

FORGET = 1 / 64
"""Part by which what was learned of seconds saved is forgotten with each new class, so that what
failed in a bad minute is tried again."""

PART = 8
"""Part of a device's memory for what is prepared for shapes as they come: one in so many."""

MEMORY_BYTES = 8 << 30
"""Memory of a device without a limit of its own, as far as that part is concerned."""

LEAST_BYTES = 64 << 10
"""Size of an executable whose memory is not known, or less."""

Key = tuple[ShapeClass, int]
"""Class and batch size."""

Session = TypeVar("Session")
Own = TypeVar("Own")


class Holder(Protocol):
    """Holds executables by keys of its own."""

    def drop(self, key: Any, /) -> None:
        """Release an executable; it is not counted any more."""


class ShapeMemory:
    """Memory of what was prepared for shapes as they came, of all models of one device.

    Bounded in bytes, whatever their number. The holder with the most gives up what it used least
    recently, so a model that gets ever new shapes drops its own once it holds more than the others,
    and never those of a model that holds less. Belongs to one thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.is_preparing = False  # beside requests: one executable at a time
        self._kept: dict[Holder, OrderedDict[Hashable, int]] = {}

    @staticmethod
    def part_of(memory_bytes: int) -> ShapeMemory:
        """Return that of a device; 0: it has no limit."""
        return ShapeMemory((memory_bytes or MEMORY_BYTES) // PART)

    @property
    def held_bytes(self) -> int:
        return sum(map(self._held, self._kept))

    def _held(self, holder: Holder) -> int:
        return sum(self._kept[holder].values())

    def keep(self, holder: Holder, key: Hashable, size_bytes: int) -> None:
        """Count an executable, and have others dropped until all fit; this one always stays."""
        size_bytes = max(size_bytes, LEAST_BYTES)
        self._kept.setdefault(holder, OrderedDict())[key] = size_bytes
        while self.held_bytes > self.limit_bytes:
            largest = max(self._kept, key=self._held)
            oldest = next(iter(self._kept[largest]))
            if (largest, oldest) == (holder, key):
                break
            self.forget(largest, oldest)
            largest.drop(oldest)

    def used(self, holder: Holder, key: Hashable) -> None:
        if key in self._kept.get(holder, ()):
            self._kept[holder].move_to_end(key)

    def forget(self, holder: Holder, key: Hashable) -> None:
        """Count an executable no more; does nothing if it is not counted."""
        self._kept.get(holder, OrderedDict()).pop(key, None)

    def forget_all(self, holder: Holder) -> None:
        self._kept.pop(holder, None)


@dataclass(slots=True)
class ShapeUse(Generic[Session]):
    """Use of one class at one batch size."""

    session: Session | None  # at these shapes; None: it does not run them
    number: int = 0  # among the classes that were new
    may_wait: bool = True  # a run for its executable: no preparation has failed
    spent_s: float = 0.0  # in the session
    session_s: list[float] = field(default_factory=list)  # of runs since there is an executable
    own_s: list[float] = field(default_factory=list)
    is_own_faster: bool | None = None  # None: not known yet
    beside: Session | None = None  # the session for runs side by side, at these shapes
    refusal: str = ""  # why the model cannot run at these shapes

    @property
    def is_owns_turn(self) -> bool:
        """Whether its own executable, if that is ready, runs it next."""
        if self.session is None or self.is_own_faster is not None:
            return self.session is None or self.is_own_faster is True
        return len(self.own_s) <= len(self.session_s)

    def forget_own(self) -> None:
        """Have it pay again, as its executable was dropped."""
        self.spent_s = 0.0
        self.own_s.clear()
        self.session_s.clear()
        if self.is_own_faster:
            self.is_own_faster = None


class ShapeUses(ABC, Generic[Session, Own]):
    """Own executables of a model's classes, and what runs have taught. Belongs to one thread."""

    def __init__(self, memory: ShapeMemory) -> None:
        """``memory``: of the device, for all models there."""
        self.prepared = self.dropped = 0  # executables
        self._memory = memory
        self._own: dict[Key, Own] = {}
        self._uses: OrderedDict[Key, ShapeUse[Session]] = OrderedDict()  # of this session
        self._new = 0
        self._new_s = 0.0  # in the session, of first runs, since one was prepared to measure
        self._first_saved = self._saved = SAVED
        self._preparation_s, self._is_guess = PREPARATION_S, True

    @abstractmethod
    def _session_at(self, key: Key) -> Session | None:
        """Return the session at the shapes of a class, if it runs them."""

    @abstractmethod
    def _release(self, own: Own) -> None:
        """Release an executable that is used no more."""

    def _use(self, key: Key) -> ShapeUse[Session]:
        use = self._uses.get(key)
        if use is None:
            self._new += 1
            self._saved += (self._first_saved - self._saved) * FORGET
            has_nothing = any(0 in spec.shape for _, spec in key[0].inputs)
            session = None if has_nothing or key[0].is_alone else self._session_at(key)
            use = self._uses[key] = ShapeUse(session, self._new)
            if len(self._uses) > MAX_USES:
                self._uses.popitem(last=False)
        self._uses.move_to_end(key)
        return use

    def _expect_saved(self, part: float | None) -> None:
        """Expect executables to save this part of the session's seconds, before any was tried."""
        if part is not None:
            self._first_saved = self._saved = max(LEAST_SAVED, part)

    def _spent(self, use: ShapeUse[Session], seconds: float) -> None:
        """Count a run in the session."""
        if not use.spent_s:
            self._new_s += seconds
        use.spent_s += seconds

    def _pays(self, use: ShapeUse[Session]) -> bool:
        """Whether an executable would have paid by now, and was not found to be slower.

        Or whether it is time for one that shows what preparations cost.
        """
        if use.is_own_faster is not None:
            return False
        if self._new_s * (TO_MEASURE if self._is_guess else AGAIN) >= self._preparation_s:
            self._new_s = 0.0
            return True
        return use.spent_s * self._saved >= self._preparation_s

    def _pays_at_once(self, use: ShapeUse[Session], next_s: float) -> bool:
        """Whether it pays with the next run, of ``next_s`` in the session, which waits for it."""
        if use.is_own_faster is not None or not use.may_wait or use.number % IN_SESSION == 0:
            return False
        if self._preparation_s > WAITING * (1 - self._saved) * next_s:
            return False
        return (use.spent_s + next_s) * self._saved >= self._preparation_s

    def _keep(self, key: Key, own: Own, size_bytes: int, seconds: float) -> None:
        """Take an executable, prepared in ``seconds`` without the requests that went first."""
        part, self._is_guess = 1.0 if self._is_guess else LEARNING, False
        self._preparation_s += part * (seconds - self._preparation_s)
        self._own[key] = own
        self.prepared += 1
        self._memory.keep(self, key, size_bytes)

    def _failed(self, key: Key, error: BaseException) -> None:
        """Try no second preparation beside the session, unless the worker was not there."""
        if not isinstance(error, Unavailable):
            self._use(key).is_own_faster = False

    def _learn_saved(self, part: float) -> None:
        """Learn what an executable saved of the session's seconds."""
        self._saved = max(LEAST_SAVED, self._saved + LEARNING * (part - self._saved))

    def _tried(self, key: Key, seconds: float, *, is_own: bool) -> None:
        """Count a run of a class that has an executable; decides after enough of both ways."""
        use = self._use(key)
        if use.is_own_faster is None and use.session is not None:
            (use.own_s if is_own else use.session_s).append(seconds)
            if min(len(use.own_s), len(use.session_s)) >= TRIALS:
                saved = 1 - median(use.own_s) / median(use.session_s)
                use.is_own_faster = saved >= MARGIN
                self._learn_saved(saved)
        if use.is_own_faster is False:
            self._memory.forget(self, key)
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Release an own executable, as its memory is needed or it is not the faster one."""
        own = self._own.pop(key)
        if (use := self._uses.get(key)) is not None:
            use.forget_own()
        self.dropped += 1
        self._release(own)

    def _take_all(self) -> list[Own]:
        """Return all own executables, of which none is counted any more."""
        self._memory.forget_all(self)
        own, self._own = list(self._own.values()), {}
        return own
