"""Limit of one run on a device, from the latency of its plan when that was prepared.

    limit = 20 times the plan's latency, at least ``floor_s``, at most ``cap_s``;
            never less than three times that latency

The latency is that of the worker's own first runs, on inputs of its own, so that no caller can
raise the limit. A caller's deadline ends a run earlier, if all callers of its batch have one.
"""

from __future__ import annotations

from dataclasses import dataclass

from braid.engine.link.watch import RunBound

FACTOR = 20.0
LEAST_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Least and greatest limit of a run, in seconds, as the operator sets them."""

    floor_s: float = 20.0
    cap_s: float = 60.0

    def bound(self, latency_s: float) -> RunBound:
        """Return the bound of one run of a plan that took ``latency_s`` when it was prepared.

        A worker is not replaced before a run had ``LEAST_FACTOR`` times that latency, even if no
        request waits for the run any more: operators that cannot be stopped may take that long.
        """
        kill_after_s = LEAST_FACTOR * latency_s
        limit_s = min(max(self.floor_s, FACTOR * latency_s), self.cap_s)
        return RunBound(max(limit_s, kill_after_s), kill_after_s)
