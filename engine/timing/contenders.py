"""Who takes part in a contest of whole models, and how one of its runs is timed.

Requests go first even in the middle of a run (docs/decisions/0021-requests-interrupt.md). Their
time does not count; short runs, in which it shows that the caches were lost, are repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from braid.engine.runtime.yielding import Pause
from braid.engine.timing.runs import Run, Tensors
from braid.engine.timing.samples import uninterrupted

QUICK_US = 150_000.0
"""Of a run of less than this, what others left in the caches is a part that counts."""

_SHORT_US = 50_000.0
"""A run of less than this is tried again if it was interrupted."""


@dataclass(slots=True)
class Entrant:
    """One way to run the model, and what was seen of it."""

    run: Run
    timed_us: Callable[[Tensors], float] | None = None  # runs, and tells the device's own time
    activation_bytes: Callable[[], int | None] = lambda: None  # asked when it has run
    samples_us: dict[int, float] = field(default_factory=dict)  # by round
    bursts_us: list[list[float]] = field(default_factory=list)  # by turn of the finals
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    problem: str = ""  # why it could not run

    @property
    def is_quick(self) -> bool:
        """Whether one run first takes back the caches from others."""
        return min(self.samples_us.values(), default=0.0) < QUICK_US


def sample_us(entrant: Entrant, inputs: Tensors, pause: Pause) -> float:
    """One run; ``inputs`` are those of its first one."""
    if (timed_us := entrant.timed_us) is not None:
        return uninterrupted(lambda: (timed_us(inputs), False))

    def sample() -> tuple[float, bool]:
        ran = entrant.run(inputs, pause)
        return ran.latency_us, ran.was_interrupted and ran.busy_us <= _SHORT_US

    return uninterrupted(sample)
