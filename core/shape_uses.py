"""What runs a class of shapes that no schedule was made for: a session, or its own executable.

    run in the session ──pays──> its owner prepares an executable ──tried──> the way that serves

The session runs any shape, and nothing is prepared. A class gets an executable of its own when that
would have paid by now:

    seconds spent in the session  *  part of them to be saved  >=  seconds of a preparation

A class that came once only never gets one, so that what brings ever new shapes does not have them
prepared, however cheap that is. Both are means over the classes that were prepared; the part is
first what a schedule's comparison has measured. Both ways then take turns on the runs of the class,
so that both see the machine as it is, until one is chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

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

Key = tuple[ShapeClass, int]
"""Class and batch size."""

Session = TypeVar("Session")


@dataclass(slots=True)
class ShapeUse(Generic[Session]):
    """Use of one class at one batch size."""

    session: Session | None  # at these shapes; None: it does not run them
    runs: int = 0  # in the session, since there is no executable
    spent_s: float = 0.0  # in those
    session_s: list[float] = field(default_factory=list)  # of runs since there is an executable
    own_s: list[float] = field(default_factory=list)
    is_own_faster: bool | None = None  # None: not known yet

    @property
    def is_owns_turn(self) -> bool:
        """Whether its own executable, if that is ready, runs it next."""
        if self.session is None or self.is_own_faster is not None:
            return self.session is None or self.is_own_faster is True
        return len(self.own_s) <= len(self.session_s)

    def ran_in_session(self, seconds: float) -> None:
        self.runs += 1
        self.spent_s += seconds

    def forget_own(self) -> None:
        """Have it pay again, as its executable was dropped."""
        self.runs, self.spent_s = 0, 0.0
        self.own_s.clear()
        self.session_s.clear()
        if self.is_own_faster:
            self.is_own_faster = None


class ShapeUses(Generic[Session]):
    """Uses of a model's classes, and what they have taught. Belongs to one thread."""

    def __init__(self, session_at: Callable[[Key], Session | None]) -> None:
        self._session_at = session_at
        self._uses: OrderedDict[Key, ShapeUse[Session]] = OrderedDict()
        self._saved, self._preparation_s = SAVED, PREPARATION_S

    def of(self, key: Key) -> ShapeUse[Session]:
        use = self._uses.get(key)
        if use is None:
            use = self._uses[key] = ShapeUse(self._session_at(key))
            if len(self._uses) > MAX_USES:
                self._uses.popitem(last=False)
        self._uses.move_to_end(key)
        return use

    def expect_saved(self, part: float | None) -> None:
        """Expect executables to save this part of the session's seconds, before any was tried."""
        if part is not None:
            self._saved = max(LEAST_SAVED, part)

    def clear(self) -> None:
        """Forget all uses, as there is another session, or none."""
        self._uses.clear()

    def pays(self, use: ShapeUse[Session]) -> bool:
        """Whether an executable would have paid by now, and was not found to be slower."""
        has_paid = use.runs > 1 and use.spent_s * self._saved >= self._preparation_s
        return has_paid and use.is_own_faster is None

    def prepared(self, seconds: float) -> None:
        """Learn what a preparation takes, without the requests that went first."""
        self._preparation_s += LEARNING * (seconds - self._preparation_s)

    def tried(self, use: ShapeUse[Session], seconds: float, *, is_own: bool) -> None:
        """Count a run of a class that has an executable; decides after enough of both ways."""
        if use.is_own_faster is not None or use.session is None:
            return
        (use.own_s if is_own else use.session_s).append(seconds)
        if min(len(use.own_s), len(use.session_s)) >= TRIALS:
            saved = 1 - median(use.own_s) / median(use.session_s)
            use.is_own_faster = saved >= MARGIN
            self._saved = max(LEAST_SAVED, self._saved + LEARNING * (saved - self._saved))

    def dropped(self, key: Key) -> None:
        if (use := self._uses.get(key)) is not None:
            use.forget_own()
