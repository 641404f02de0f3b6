"""What jobs ask of a device to measure, with a worker that answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braid.core.errors import WorkerFault
from braid.core.measurement import StageLatency
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.server.devices.measuring.bench import ATTEMPTS, Bench

PROGRAM = ProgramKey("ab", (("x", TensorType("FP32", (1, 4))),))


class Place:
    """Answers with one latency after the other."""

    is_measuring = False

    def __init__(self, *latencies_us: float) -> None:
        self.left: Iterator[float] = iter(latencies_us)
        self.measured = 0

    async def call(self, *_: Any) -> StageLatency:
        self.measured += 1
        return StageLatency(next(self.left), 0.0, 3)


def bench_over(place: Place) -> Bench:
    return Bench(place, lambda _: None)  # type: ignore[arg-type]


async def test_a_latency_that_cannot_be_is_measured_again() -> None:
    place = Place(0.0, float("nan"), 12.5)
    bench = bench_over(place)

    timing = await bench.measure_stage(PROGRAM, Stage(((0,),)))

    assert (timing.latency_us, place.measured) == (12.5, 3)


async def test_a_device_that_only_measures_what_cannot_be_is_at_fault() -> None:
    place = Place(*[0.0] * 9)
    bench = bench_over(place)

    with pytest.raises(WorkerFault, match=r"a latency of 0\.0 us was measured, which cannot be"):
        await bench.measure_stage(PROGRAM, Stage(((0,),)))

    assert place.measured == ATTEMPTS
