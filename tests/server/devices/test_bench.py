"""What jobs ask of a device to measure, with a worker that answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braid.core.errors import WorkerFault
from braid.core.graph import graph_to_json
from braid.core.schedule import Stage
from braid.core.tensor import TensorSpec
from braid.server.devices.measuring.bench import ATTEMPTS, Bench, LoadedModel
from tests.server.jobs.fakes import template


class Place:
    """Answers with one latency after the other."""

    is_measuring = False

    def __init__(self, *latencies_us: float) -> None:
        self.left: Iterator[float] = iter(latencies_us)
        self.measured = 0

    async def call(self, op: str, **fields: Any) -> Any:
        if op == "describe":
            return {"graph": graph_to_json(template())}
        self.measured += 1
        return {"latency_us": next(self.left), "spread": 0.0, "repeats": 3}


async def bench_over(place: Place) -> Bench:
    model = LoadedModel(Path("artefact"), ())
    bench = Bench(place, lambda _: model)  # type: ignore[arg-type]
    await bench.static_graph("ab", 1, {"x": TensorSpec("FP32", (1, 4))})
    return bench


async def test_a_latency_that_cannot_be_is_measured_again() -> None:
    place = Place(0.0, float("nan"), 12.5)
    bench = await bench_over(place)

    timing = await bench.measure_stage("ab", 1, Stage(((0,),)))

    assert (timing.latency_us, place.measured) == (12.5, 3)


async def test_a_device_that_only_measures_what_cannot_be_is_at_fault() -> None:
    place = Place(*[0.0] * 9)
    bench = await bench_over(place)

    with pytest.raises(WorkerFault, match=r"a latency of 0\.0 us was measured, which cannot be"):
        await bench.measure_stage("ab", 1, Stage(((0,),)))

    assert place.measured == ATTEMPTS
