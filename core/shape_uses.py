"""What runs a class of shapes that no schedule was made for: a session, or its own executable.

    run in the session ──pays──> its owner prepares an executable ──tried──> the way that serves

The session runs any shape, and nothing is prepared. A class gets an executable of its own when that
would have paid by now:

    seconds spent in the session  *  part of them to be saved  >=  seconds of a preparation

Both are means over the classes that were prepared; the part is first what a schedule's comparison
has measured. Where the seconds of the next run make it pay, that run waits for it. Both ways then
take turns on the runs of the class, so that both see the machine as it is, until one is chosen.
"""

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

WAITING = 0.5
"""A preparation that a run waits for takes at most this part of what the run then takes."""

IN_SESSION = 8
"""One new class in so many runs in the session first, so that its seconds are known as of now."""

TO_MEASURE, AGAIN = 1 / 16, 1 / 64
"""Parts of new classes' time spent on preparations to measure their cost: first, and later."""

FORGET = 1 / 64
"""Part by which what was learned of seconds saved is forgotten with each new class, so that what
failed in a bad minute is tried again."""

Key = tuple[ShapeClass, int]
"""Class and batch size."""

Session = TypeVar("Session")


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


class ShapeUses(Generic[Session]):
    """Uses of a model's classes, and what they have taught. Belongs to one thread."""

    def __init__(self, session_at: Callable[[Key], Session | None]) -> None:
        """``session_at``: the session at the shapes of a class, if it runs them."""
        self._session_at = session_at
        self._uses: OrderedDict[Key, ShapeUse[Session]] = OrderedDict()
        self._new = 0
        self._new_s = 0.0  # in the session, of first runs, since one was prepared to measure
        self._first_saved = self._saved = SAVED
        self._preparation_s, self._is_guess = PREPARATION_S, True

    def of(self, key: Key) -> ShapeUse[Session]:
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

    def expect_saved(self, part: float | None) -> None:
        """Expect executables to save this part of the session's seconds, before any was tried."""
        if part is not None:
            self._first_saved = self._saved = max(LEAST_SAVED, part)

    def clear(self) -> None:
        """Forget all uses, as there is another session, or none."""
        self._uses.clear()

    def spent(self, use: ShapeUse[Session], seconds: float) -> None:
        """Count a run in the session."""
        if not use.spent_s:
            self._new_s += seconds
        use.spent_s += seconds

    def pays(self, use: ShapeUse[Session]) -> bool:
        """Whether an executable would have paid by now, and was not found to be slower.

        Or whether it is time for one that shows what preparations cost.
        """
        if use.is_own_faster is not None:
            return False
        if self._new_s * (TO_MEASURE if self._is_guess else AGAIN) >= self._preparation_s:
            self._new_s = 0.0
            return True
        return use.spent_s * self._saved >= self._preparation_s

    def pays_at_once(self, use: ShapeUse[Session], next_s: float) -> bool:
        """Whether it pays with the next run, of ``next_s`` in the session, which waits for it."""
        if use.is_own_faster is not None or not use.may_wait or use.number % IN_SESSION == 0:
            return False
        if self._preparation_s > WAITING * (1 - self._saved) * next_s:
            return False
        return (use.spent_s + next_s) * self._saved >= self._preparation_s

    def prepared(self, seconds: float) -> None:
        """Learn what a preparation takes, without the requests that went first."""
        part, self._is_guess = 1.0 if self._is_guess else LEARNING, False
        self._preparation_s += part * (seconds - self._preparation_s)

    def ran_at_once(self, seconds: float, session_s: float) -> None:
        """Learn from the first run of an executable what it saved of ``session_s``."""
        self._learn_saved(1 - seconds / session_s)

    def _learn_saved(self, part: float) -> None:
        self._saved = max(LEAST_SAVED, self._saved + LEARNING * (part - self._saved))

    def tried(self, use: ShapeUse[Session], seconds: float, *, is_own: bool) -> None:
        """Count a run of a class that has an executable; decides after enough of both ways."""
        if use.is_own_faster is not None or use.session is None:
            return
        (use.own_s if is_own else use.session_s).append(seconds)
        if min(len(use.own_s), len(use.session_s)) >= TRIALS:
            saved = 1 - median(use.own_s) / median(use.session_s)
            use.is_own_faster = saved >= MARGIN
            self._learn_saved(saved)

    def dropped(self, key: Key) -> None:
        if (use := self._uses.get(key)) is not None:
            use.forget_own()
