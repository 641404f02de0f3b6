"""Decides when a worker is hung, from the status that its control thread reports.

    tick ──ask──> control thread ──status──> heard          (engine/worker/process/assembly.py)
      ├──a run takes too long, or no request waits for it──> stop, which ends most runs
      └──the run goes on, or no status comes──> the worker is hung: it is replaced

Silence is counted in ticks, not in seconds of the clock: after a time in which front end and worker
were both suspended, the worker must not count as silent. Knows no process and no event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

from braid.engine.link.messages import (
    AskStatus,
    ControlOrder,
    MeasurementRequest,
    StopRun,
    StopStep,
    WorkerRequest,
    WorkerStatus,
)
from braid.engine.link.options import WatchLimits

TICK_S = 0.5
GRACE_S = 1.0  # seconds that a stopped run has to end before the worker is replaced
SILENT_TICKS = 4  # after so many unanswered questions a worker gets no new requests

UNWANTED = "no request waited for this run any more"


@dataclass(frozen=True, slots=True)
class RunBound:
    """Limits of one run, in seconds since the device began with it."""

    limit_s: float = inf  # after them the run is ended, even if a request waits for it
    kill_after_s: float = 0.0  # before them no worker is replaced for a run without requests


@dataclass(slots=True)
class OpenCall:
    """A call that the worker has not answered yet."""

    request: WorkerRequest[Any]
    future: asyncio.Future[Any]
    sent_at: float
    on_progress: Callable[[Any], None] | None = None
    bound: RunBound | None = None  # of a run
    unwanted_at: float | None = None  # when the last request of a run left
    stopped_at: float | None = None
    is_too_long: bool = False


class Watch:
    """Open calls of one worker, which is not judged before it has sent a status."""

    def __init__(self, limits: WatchLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self.calls: dict[int, OpenCall] = {}  # in the order of their sending
        self._status: WorkerStatus | None = None
        self._heard_at = 0.0
        self._unanswered = 0  # questions, one after the other
        self._step_stopped_at: float | None = None
        self.problem = ""  # why the worker is to be replaced; "" if it is not
        self.hung_call: OpenCall | None = None  # that it is to be replaced for, if known

    @property
    def is_silent(self) -> bool:
        """Whether the last ``SILENT_TICKS`` questions have no answer, though earlier ones had."""
        return self._status is not None and self._unanswered >= SILENT_TICKS

    def unwanted(self, answer: asyncio.Future[Any]) -> list[ControlOrder]:
        """Record that no request waits for a run any more; returns orders to the worker."""
        for number, call in self.calls.items():
            if call.future is answer and call.unwanted_at is None:
                call.unwanted_at = call.stopped_at = self._clock()
                return [StopRun(number, UNWANTED)]
        return []

    def heard(self, status: WorkerStatus) -> None:
        self._status, self._heard_at, self._unanswered = status, self._clock(), 0

    def tick(self) -> list[ControlOrder]:
        """Judge the last status, every ``TICK_S`` seconds; returns orders and the next question."""
        orders: list[ControlOrder] = []
        if self._status is not None and not self.problem:
            self._judge_silence()
            if not self.problem:
                orders = [*self._judge_runs(self._status), *self._judge_step(self._status)]
        self._unanswered += 1
        return [*orders, AskStatus()]

    def _judge_silence(self) -> None:
        """Replace a worker whose process does nothing, e.g. because it got SIGSTOP."""
        silence_s = self._unanswered * TICK_S
        now = self._clock()
        late = [
            run
            for run in self.calls.values()
            if run.bound is not None
            and run.unwanted_at is not None
            and now - run.unwanted_at >= max(GRACE_S, run.bound.kill_after_s)
        ]
        if silence_s >= self._limits.silence_s:
            runs = (call for call in self.calls.values() if call.bound is not None)
            self._replace(f"it did not answer for {silence_s:g} s", next(runs, None))
        elif silence_s > self._limits.late_silence_s and late:
            self._replace(f"it did not answer for {silence_s:g} s, nor end a late run", late[0])

    def _judge_runs(self, status: WorkerStatus) -> list[ControlOrder]:
        """Judge the oldest run and those on other places of the device."""
        if status.call is None:
            return []
        runs = (status.call, status.run_s), *status.beside
        return [order for call, run_s in runs for order in self._judge_run(call, run_s)]

    def _judge_run(self, call: int, run_s: float) -> list[ControlOrder]:
        """Stop a run that takes too long; replace the worker if it goes on."""
        run = self.calls.get(call)
        if run is None or run.bound is None:
            return []
        now = self._clock()
        ran_s = run_s + now - self._heard_at
        if ran_s > run.bound.limit_s and not run.is_too_long:
            run.is_too_long = True
            run.stopped_at = run.stopped_at or now
            return [StopRun(call, _too_long(run.bound.limit_s))]
        kill_after_s = 0.0 if run.is_too_long else run.bound.kill_after_s
        if run.stopped_at is not None and now - run.stopped_at >= GRACE_S and ran_s >= kill_after_s:
            self._replace(f"a run did not end, {ran_s:.1f} s after it began", run)
        return []

    def _judge_step(self, status: WorkerStatus) -> list[ControlOrder]:
        """As ``_judge_run``, of work that is no run; an old status may be of an earlier step."""
        step_s, now = status.step_s, self._clock()
        if step_s is None or status.call is not None or self._unanswered > 1:
            return []
        if step_s <= self._limits.step_s:
            self._step_stopped_at = None
        elif self._step_stopped_at is None:
            self._step_stopped_at = now
            return [StopStep(_too_long(self._limits.step_s))]
        elif now - self._step_stopped_at >= GRACE_S:
            others = [
                (isinstance(call.request, MeasurementRequest), number)  # these go on when idle
                for number, call in self.calls.items()
                if call.bound is None and call.sent_at <= now - step_s
            ]
            hung_call = self.calls[min(others)[1]] if others else None
            self._replace(f"one step of its work did not end after {step_s:.1f} s", hung_call)
        return []

    def _replace(self, problem: str, hung_call: OpenCall | None) -> None:
        self.problem, self.hung_call = problem, hung_call


def _too_long(seconds: float) -> str:
    return (
        f"it was ended after {seconds:.3g} s on the device, many times what the model takes; send "
        "smaller inputs, or raise BRAID_MAX_RUN_SECONDS on the server"
    )
