"""Which plan a registration chooses, and plans for batches side by side."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from braid.compiler.compile import with_side_by_side
from braid.compiler.device import Device
from braid.compiler.retries import RetryWhileRestarting
from braid.core.errors import InvalidRequest
from braid.core.measurement import PlanMeasurement, SideBySideRuns, Speed, side_by_side_text
from braid.core.plan import sequential_plan
from braid.core.program import ProgramKey
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Provenance, Schedule, ScheduleKey
from braid.engine.link.messages import ThroughputMeasurements
from braid.scheduler.options import PlannerSettings
from braid.server.store.records import JobStatus
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import registered

WITHIN_NOISE = (0.99, 1.02, 1.03, 1.005, 0.98, 1.004, 1.04, 0.97, 1.02)


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (
            PlanMeasurement(102.0, 0.5, 9, (0.98,) * 9, 0.0, 0.0),
            r"not faster, its speed-up over sequential is 0\.980x",
        ),
        (
            PlanMeasurement(101.5, 0.001, 9, (0.98,) * 9, 0.0, 0.0),
            "the sequential plan goes on serving",
        ),
        (
            PlanMeasurement(50.0, 0.01, 9, (2.0,) * 9, 1.0, 0.1),
            "outputs differ by 0.1 .* 0.0001 is allowed",
        ),
        (PlanMeasurement(None, None, 0, (), 0.0, float("nan")), "outputs differ by nan"),
        (
            PlanMeasurement(98.0, 0.02, 9, WITHIN_NOISE, 0.0, 0.0),
            r"its speed-up over sequential is 1\.005x \(0\.980 to 1\.030\)",
        ),
    ],
)
async def test_a_plan_that_is_wrong_or_slower_is_kept_but_does_not_serve(
    server: Server, measurement: PlanMeasurement, reason: str
) -> None:
    server.device.others = measurement

    job = await registered(server)

    assert job.state is JobStatus.READY
    assert server.models.plans == {}
    (schedule,) = server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
    assert not schedule.provenance.promoted
    assert job.message == f"batch size 1: {schedule.provenance.reason}"
    assert re.search(reason, job.message)


@pytest.mark.parametrize(
    ("usual", "other", "is_fit"),  # 1e-4 is allowed
    [
        (1e-6, 5e-5, True),
        (1e-6, 6e-5, False),
        (8e-5, 8.9e-5, True),
        (8e-5, 9.1e-5, False),
        (1e-6, None, False),
    ],
)
async def test_faster_kernels_serve_if_they_err_little_more(
    server: Server, usual: float, other: float | None, is_fit: bool
) -> None:
    server.device.kernel_us["other"] = 50.0
    on_usual = server.device.sequential = PlanMeasurement(100.0, 0.01, 9, (1.0,) * 9, usual, usual)
    server.device.on_other_kernels = replace(on_usual, max_abs_error=other, max_rel_error=other)

    await registered(server, planner=PlannerSettings("sequential"))

    (schedule,) = server.models.plans.values()
    assert schedule.provenance.choices == ({"ab": "other"} if is_fit else {})


async def test_on_faster_kernels_the_sequential_plan_serves_where_no_other_is_faster(
    server: Server,
) -> None:
    server.device.kernel_us["other"] = 50.0
    server.device.others = PlanMeasurement(102.0, 0.5, 9, (0.98,) * 9, 0.0, 0.0)

    await registered(server)

    (schedule,) = server.models.plans.values()
    assert (schedule.planner, schedule.provenance.promoted) == ("sequential", True)
    assert schedule.provenance.choices == {"ab": "other"}


async def test_the_sequential_planner_cannot_be_slower_than_sequential(server: Server) -> None:
    server.device.others = PlanMeasurement(120.0, 0.01, 9, (0.8,) * 9, 0.0, 0.0)

    job = await registered(server, planner=PlannerSettings("sequential"))

    assert (job.state, job.message) == (JobStatus.READY, "")


async def test_the_portfolio_serves_the_fastest_and_keeps_what_all_of_them_showed(
    server: Server,
) -> None:
    server.device.in_runtime = PlanMeasurement(80.0, 0.01, 10, (1.25,) * 9, 1e-6, 1e-6)

    job = await registered(server, planner=PlannerSettings("portfolio"))

    assert (job.state, job.message) == (JobStatus.READY, "")
    (schedule,) = server.models.plans.values()
    assert schedule.runtime == ONNXRUNTIME
    assert schedule.plan.streams > 1, "the best plan of our own is what runs if that cannot"
    seen = schedule.provenance
    assert (seen.measured_us, seen.sequential_us, seen.promoted) == (80.0, 100.0, True)
    names = [contender.name for contender in seen.candidates]
    assert (names[0], names[-1]) == ("sequential", "onnxruntime")
    (plans,) = server.device.compared
    assert len(plans) == len(set(plans)) == len(names) - 1


async def test_a_wrong_candidate_never_serves_and_the_job_says_so(server: Server) -> None:
    server.device.others = PlanMeasurement(None, None, 0, (), 0.3, 0.3)

    job = await registered(server, planner=PlannerSettings("portfolio"))

    (schedule,) = server.models.plans.values()
    assert (schedule.planner, schedule.plan.streams) == ("sequential", 1)
    assert job.state is JobStatus.READY
    assert re.search(r"greedy.* is refused: outputs differ by 0.3", job.message)
    assert server.observer.refused > 0


async def test_a_precision_has_schedules_and_measurements_of_its_own(server: Server) -> None:
    exact = await registered(server)
    measured = sum(server.device.measured.values())

    job = await registered(server, precision="tf32")

    assert (exact.version, job.version, job.state) == (1, 2, JobStatus.READY)
    assert server.device.precision == "tf32"
    assert sum(server.device.measured.values()) == 2 * measured
    keys = [schedule.key for schedule in server.models.plans.values()]
    assert {(key.precision, key.accepted_error) for key in keys} == {("fp32", None), ("tf32", None)}


async def test_a_precision_is_compared_with_no_runtime_that_computes_in_fp32(
    server: Server,
) -> None:
    server.device.in_runtime = PlanMeasurement(10.0, 0.01, 10, (10.0,) * 9, 1e-6, 1e-6)

    await registered(server, precision="fp16", planner=PlannerSettings("portfolio"))

    (schedule,) = server.models.plans.values()
    assert schedule.runtime == ""
    assert ONNXRUNTIME not in {each.name for each in schedule.provenance.candidates}


async def test_a_precision_that_is_refused_leaves_the_model_in_fp32(server: Server) -> None:
    server.device.sequential = PlanMeasurement(100.0, 0.01, 10, (1.0,) * 9, 0.5, 0.03)

    job = await registered(server, precision="fp16")

    assert server.models.serving, "sequentially, in FP32"
    assert not server.models.plans
    assert "in fp16 outputs differ by 0.03 of the largest element, 0.01 is allowed" in job.message
    assert server.observer.refused > 0
    accepting = await registered(server, precision="fp16", accepted_error=0.05)
    assert accepting.message == ""
    (schedule,) = server.models.plans.values()
    assert (schedule.key.precision, schedule.provenance.tolerance) == ("fp16", 0.05)


async def test_a_precision_that_a_device_lacks_is_refused_at_once(server: Server) -> None:
    with pytest.raises(
        InvalidRequest, match="device cpu computes in fp32, tf32, fp16, not in bf16"
    ):
        await server.register(precision="bf16")
    with pytest.raises(InvalidRequest, match="no precision 'fp8'"):
        await server.register(precision="fp8")
    with pytest.raises(InvalidRequest, match="relative to the largest element"):
        await server.register(accepted_error=1.5)


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
