"""Stages that a device measures, with a worker that answers as it is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from braid.compiler.device import ATTEMPTS, measure
from braid.core.errors import WorkerFault
from braid.core.measurement import StageLatency
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.link.messages import MeasureStage

PROGRAM = ProgramKey("ab", (("x", TensorType("FP32", (1, 4))),))
REQUEST = MeasureStage(PROGRAM, Stage(((0,),)))


class Place:
    def __init__(self, *latencies_us: float) -> None:
        self.left: Iterator[float] = iter(latencies_us)
        self.measured = 0

    async def ask(self, *_: Any) -> StageLatency:
        self.measured += 1
        return StageLatency(next(self.left), 0.0, 3)


async def test_a_latency_that_cannot_be_is_measured_again() -> None:
    place = Place(0.0, float("nan"), 12.5)

    timing = await measure(place, REQUEST)  # type: ignore[arg-type]

    assert (timing.latency_us, place.measured) == (12.5, 3)


async def test_a_device_that_only_measures_what_cannot_be_is_at_fault() -> None:
    place = Place(*[0.0] * 9)

    with pytest.raises(WorkerFault, match=r"a latency of 0\.0 us was measured, which cannot be"):
        await measure(place, REQUEST)  # type: ignore[arg-type]

    assert place.measured == ATTEMPTS
