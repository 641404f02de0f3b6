"""Judges whether a worker still does what it was asked to, by what it says of itself.

    tick ──ask──> control thread ──status──> heard          (engine/worker/control.py)
      ├──a run took too long, or nobody waits for it──> stop, which most runs follow
      └──it goes on all the same, or there is no answer──> the worker is hung: it is replaced

Time is counted in ticks where that matters: whoever was suspended together with the worker must not
find it guilty. Knows no process and no event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

from engine.worker.frames import Message
from engine.worker.options import WatchLimits

TICK_S = 0.5
GRACE_S = 1.0
"""For a run that was stopped to end; after it the worker is replaced."""

SILENT_TICKS = 4
"""Questions without an answer after which a worker is not counted on."""

UNWANTED = "nobody waited for this run any more"


@dataclass(frozen=True, slots=True)
class RunBound:
    """How long a run may take, in seconds since the device began with it."""

    limit_s: float = inf  # even if somebody waits for it
    patience_s: float = 0.0  # before a worker is replaced for it, though nobody waits


@dataclass(slots=True)
class _Run:
    """A run that was not answered yet."""

    bound: RunBound
    unwanted_at: float | None = None
    stopped_at: float | None = None
    is_too_long: bool = False


class Watch:
    """Over one worker. A worker that never said anything is only starting: it is not judged."""

    def __init__(self, limits: WatchLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._runs: dict[int, _Run] = {}  # by call, in the order of their sending
        self._status: dict[str, Any] | None = None
        self._heard_at = 0.0
        self._unanswered = 0  # questions, one after the other
        self._step_stopped_at: float | None = None
        self.problem = ""
        """Why the worker is to be replaced, if so."""
        self.culprit: int | None = None
        """The run that the worker is to be replaced for, if any."""
        self.stuck_s: float | None = None
        """How long the step has taken that the worker is to be replaced for, if any."""

    @property
    def is_silent(self) -> bool:
        """Whether the worker has said nothing for a while, though it could before."""
        return self._status is not None and self._unanswered >= SILENT_TICKS

    def sent(self, call: int, bound: RunBound) -> None:
        """A run was asked for."""
        self._runs[call] = _Run(bound)

    def answered(self, call: int) -> bool:
        """A call was answered; returns whether it took too long, if it was stopped."""
        run = self._runs.pop(call, None)
        return run is None or run.is_too_long

    def unwanted(self, call: int) -> list[Message]:
        """Nobody waits for a run any more; returns what to tell the worker."""
        run = self._runs.get(call)
        if run is None or run.unwanted_at is not None:
            return []
        run.unwanted_at = run.stopped_at = self._clock()
        return [{"stop": call, "reason": UNWANTED}]

    def heard(self, status: dict[str, Any]) -> None:
        """The worker answered."""
        self._status, self._heard_at, self._unanswered = status, self._clock(), 0

    def tick(self) -> list[Message]:
        """Judge what is known, about once in ``TICK_S``; returns what to tell the worker."""
        orders: list[Message] = [] if self._is_gone() else [*self._judge_run(), *self._judge_step()]
        self._unanswered += 1
        return [*orders, {"ask": True}]

    def _is_gone(self) -> bool:
        """Whether the process itself does nothing, e.g. because somebody stopped it."""
        if self._status is None or self.problem:
            return True
        silence_s = self._unanswered * TICK_S
        now = self._clock()
        late = [
            call
            for call, run in self._runs.items()
            if run.unwanted_at is not None
            and now - run.unwanted_at >= max(GRACE_S, run.bound.patience_s)
        ]
        if silence_s >= self._limits.silence_s:
            self._replace(f"it did not answer for {silence_s:g} s", next(iter(self._runs), None))
        elif silence_s > self._limits.late_silence_s and late:
            self._replace(f"it did not answer for {silence_s:g} s, nor end a late run", late[0])
        return bool(self.problem)

    def _judge_run(self) -> list[Message]:
        """Stop a run that takes too long; replace the worker if it goes on."""
        assert self._status is not None
        call = self._status["call"]
        run = self._runs.get(call)
        if run is None:
            return []
        now = self._clock()
        ran_s = self._status["run_s"] + now - self._heard_at
        if ran_s > run.bound.limit_s and not run.is_too_long:
            run.is_too_long = True
            run.stopped_at = run.stopped_at or now
            return [{"stop": call, "reason": _too_long(run.bound.limit_s)}]
        patience_s = 0.0 if run.is_too_long else run.bound.patience_s
        if run.stopped_at is not None and now - run.stopped_at >= GRACE_S and ran_s >= patience_s:
            self._replace(f"a run did not end, {ran_s:.1f} s after it began", call)
        return []

    def _judge_step(self) -> list[Message]:
        """As ``_judge_run``, of work that is no run."""
        assert self._status is not None
        step_s, now = self._status["step_s"], self._clock()
        if step_s is None or self._status["call"] is not None or self._status_is_old():
            return []
        if step_s <= self._limits.step_s:
            self._step_stopped_at = None
        elif self._step_stopped_at is None:
            self._step_stopped_at = now
            return [{"stop_step": True, "reason": _too_long(self._limits.step_s)}]
        elif now - self._step_stopped_at >= GRACE_S:
            self._replace(f"one step of its work did not end after {step_s:.1f} s", None)
            self.stuck_s = step_s
        return []

    def _status_is_old(self) -> bool:
        return self._unanswered > 1

    def _replace(self, problem: str, culprit: int | None) -> None:
        self.problem, self.culprit = problem, culprit


def _too_long(seconds: float) -> str:
    return (
        f"it was ended after {seconds:.3g} s on the device, many times what the model takes; send "
        "smaller inputs, or raise BRAID_RUN_SECONDS and BRAID_MAX_RUN_SECONDS on the server"
    )
