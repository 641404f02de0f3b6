from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from braid.compiler.compile import with_side_by_side
from braid.compiler.device import Device
from braid.compiler.retries import RetryWhileRestarting
from braid.core.measurement import SideBySideRuns, Speed, side_by_side_text
from braid.core.plan import sequential_plan
from braid.core.program import ProgramKey
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Provenance, Schedule, ScheduleKey
from braid.engine.link.messages import ThroughputMeasurements

T = TypeVar("T")

BEST = SideBySideRuns(2, ONNXRUNTIME, 6370.0, Speed(1.25, 1.1, 1.35))


def schedule(found: SideBySideRuns | None) -> Schedule:
    key = ScheduleKey("d", "device", 1)
    return Schedule(
        key, "sequential", sequential_plan(1), (), ("a",), Provenance(side_by_side=found)
    )


def test_the_text_says_whether_it_is_used() -> None:
    text = "2 at once (ONNX Runtime), 6.37 ms each: 1.250x (1.100 to 1.350) the runs a second"
    assert side_by_side_text(BEST) == text
    assert "(OpenVINO)" in side_by_side_text(replace(BEST, runtime=OPENVINO))
    doubtful = SideBySideRuns(2, ONNXRUNTIME, 6370.0, Speed(1.25, 0.9, 1.35))
    assert "not used" in side_by_side_text(doubtful)


class Asked:
    """A device that notes which ways it is asked to compare, and has none that pays."""

    def __init__(self) -> None:
        self.ways: tuple[str, ...] = ()

    async def ask(self, request: Any) -> ThroughputMeasurements:
        self.ways = request.ways
        return ThroughputMeasurements(())


async def at_once(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


@pytest.mark.parametrize(
    ("measured_us", "tried"), [(2_000.0, ("", ONNXRUNTIME, OPENVINO)), (100.0, ())]
)
async def test_own_kernels_and_all_runtimes_are_tried_side_by_side_for_all_but_short_networks(
    measured_us: float, tried: tuple[str, ...]
) -> None:
    made, device = schedule(None), Asked()
    promoted = replace(made.provenance, promoted=True, tolerance=1e-4, measured_us=measured_us)
    program = ProgramKey("d", ())

    found = await with_side_by_side(
        replace(made, provenance=promoted), program, cast("Device", device),
        cast("RetryWhileRestarting", at_once), runtimes=(ONNXRUNTIME, OPENVINO),
    )  # fmt: skip

    assert device.ways == tried
    assert found.provenance.side_by_side is None
