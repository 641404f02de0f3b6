"""Timing on a GPU: what the device takes, and what a caller waits.

    GPU time:    a kernel that only waits │ the network │ start │ the network │ end
    end to end:  inputs from the host ─> the network ─> outputs on the host

Start and end are events. The waiting kernel goes first so that the host has launched everything
before the device begins: else the time between the events would be that of the host. A run that
does not count comes next, so that the timed one finds caches and clocks as a busy device has them.
The same rule holds for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import torch

CYCLES_PER_US = 2000  # no GPU so far runs faster than 2 GHz for long: rather too long a delay
LONGEST_DELAY_US = 100_000.0


class Timed(Protocol):
    """A way to run a network, by both clocks."""

    def gpu_ms(self) -> float:
        """Device time of one run on inputs in place."""

    def total_ms(self) -> float:
        """From inputs in the host's memory to outputs there."""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of some runs, by both clocks."""

    gpu_ms: list[float]
    total_ms: list[float]


def times(timed: Timed, count: int) -> Times:
    """This many runs by each clock, each after one that does not count."""
    timed.gpu_ms()
    gpu = [timed.gpu_ms() for _ in range(count)]
    timed.total_ms()
    return Times(gpu, [timed.total_ms() for _ in range(count)])


def quick_ms(timed: Timed) -> float:
    return median(timed.gpu_ms() for _ in range(5))


def delay_us(launch: Callable[[], object], wait: Callable[[], object]) -> float:
    """How long the device must wait for the host to launch a network twice, and a bit."""
    longest = 0.0
    for _ in range(3):
        wait()
        began = perf_counter_ns()
        launch()
        longest = max(longest, (perf_counter_ns() - began) / 1e3)
    wait()
    return min(LONGEST_DELAY_US, 50.0 + 2.4 * longest)


def hold_up(us: float) -> None:
    """Keep the current stream busy for this long, or a little longer."""
    cuda: Any = torch.cuda  # typed in some builds only
    cuda._sleep(int(us * CYCLES_PER_US))


def largest_error(got: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> float:
    """Of all elements, relative to the largest one of each tensor; infinite if one is no number."""
    worst = 0.0
    for one, other in zip(got, wanted, strict=True):
        scale = float(other.double().abs().max()) or 1.0
        error = float((one.double() - other.double()).abs().max()) / scale
        worst = max(worst, error) if error == error else float("inf")
    return worst
