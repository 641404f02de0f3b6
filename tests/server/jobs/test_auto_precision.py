from dataclasses import replace

import pytest

from braid.core.errors import InvalidRequest
from braid.core.measurement import PlanMeasurement
from braid.core.runtimes import OPENVINO
from braid.core.schedule import Schedule
from braid.scheduler.options import PlannerSettings
from braid.server.store.records import JobStatus
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import registered

PORTFOLIO = PlannerSettings("portfolio")
TURNS = 9


def took(us: float, error: float = 1e-3, runs: int = 10) -> PlanMeasurement:
    """A candidate that took so long where the sequential plan in FP32 took 100 us."""
    return PlanMeasurement(us, 0.01, runs, (100.0 / us,) * TURNS, error, error)


def served(server: Server) -> Schedule:
    (schedule,) = server.models.plans.values()
    return schedule


async def auto(server: Server, error: float | None = None) -> Schedule:
    job = await registered(server, planner=PORTFOLIO, precision="auto", accepted_error=error)
    assert job.state is JobStatus.READY, job.message
    return served(server)


async def test_the_fastest_precision_within_the_error_serves(server: Server) -> None:
    server.device.narrow = {
        "tf32": (took(80, 1e-4), took(70, 1e-4)),
        "fp16": (took(60, 1e-3), took(50, 1e-3)),
    }

    schedule = await auto(server)

    assert (schedule.precision, schedule.key.precision) == ("fp16", "auto")
    seen = schedule.provenance
    assert (seen.measured_us, seen.sequential_us, seen.tolerance) == (50.0, 100.0, 1e-2)
    assert (seen.max_rel_error, seen.samples) == (1e-3, 0)
    names = [each.full_name for each in seen.candidates]
    assert len(set(names)) == len(names)
    assert {"sequential in fp32", "sequential in tf32", "sequential in fp16"} < set(names)
    assert schedule.chosen is not None
    assert schedule.chosen.precision == "fp16"


async def test_what_errs_more_than_accepted_does_not_serve_however_fast(server: Server) -> None:
    lost = replace(took(20, 0.3), lost_in="b (fake), 0.3 by itself")
    server.device.narrow = {"tf32": (took(80, 1e-4), took(70, 1e-4)), "fp16": (lost, took(10))}

    schedule = await auto(server)

    assert schedule.precision == "tf32"
    refused = next(
        each for each in schedule.provenance.candidates if each.full_name == "sequential in fp16"
    )
    assert refused.erred
    assert "most is lost in b (fake), 0.3 by itself" in refused.remark


async def test_a_small_error_leaves_fp32_which_is_not_held_to_it(server: Server) -> None:
    server.device.narrow = {"tf32": (took(80, 1e-4), took(70, 1e-4)), "fp16": (took(60), took(50))}
    server.device.sequential = took(100, 5e-5)
    server.device.others = took(90, 5e-5)

    schedule = await auto(server, 1e-5)

    assert schedule.precision == "fp32"
    assert schedule.provenance.measured_us == 90.0
    assert schedule.provenance.tolerance == 1e-4


async def test_a_narrow_precision_must_be_faster_without_doubt(server: Server) -> None:
    server.device.narrow = {"tf32": (took(90), took(90)), "fp16": (took(90), took(90))}

    schedule = await auto(server)

    assert schedule.precision == "fp32", "a draw: the more exact one serves"


async def test_a_hopeless_precision_is_not_searched(server: Server) -> None:
    slow = (took(160, 1e-4), took(10, 1e-4))
    server.device.narrow = {"tf32": slow, "fp16": (took(90, 0.5), took(10))}

    schedule = await auto(server)

    assert server.planner.calls == 1, "of FP32"
    assert schedule.precision == "fp32"
    brief, whole = server.device.compared
    assert len(brief) == 3, "the sequential plan of each precision"
    assert len(whole) > 3


async def test_another_runtime_takes_part_in_each_precision_that_it_knows(server: Server) -> None:
    server.device.precisions = ("fp32", "bf16")
    server.device.runtimes = (OPENVINO,)
    server.device.narrow = {"bf16": (took(110), took(105))}
    server.device.in_runtimes = {
        (OPENVINO, "fp32"): took(95, 1e-6),
        (OPENVINO, "bf16"): took(40, 2e-3),
    }

    schedule = await auto(server)

    assert (schedule.runtime, schedule.precision) == (OPENVINO, "bf16")
    assert schedule.provenance.max_rel_error == 2e-3


async def test_no_runtime_serves_in_a_precision_that_the_own_plan_cannot_take_over(
    server: Server,
) -> None:
    server.device.precisions = ("fp32", "bf16")
    server.device.runtimes = (OPENVINO,)
    server.device.narrow = {"bf16": (took(50, 0.3), took(50, 0.3))}
    server.device.in_runtimes = {
        (OPENVINO, "fp32"): took(130, 1e-6, runs=4),
        (OPENVINO, "bf16"): took(40, 2e-3),
    }

    assert (await auto(server)).precision == "fp32"


async def test_a_device_without_other_precisions_serves_fp32_and_searches_once(
    server: Server,
) -> None:
    server.device.precisions = ("fp32",)

    schedule = await auto(server)

    assert schedule.precision == "fp32"
    assert server.planner.calls == len(server.device.compared) == 1
    with pytest.raises(InvalidRequest, match=r"computes in fp32, not in bf16; .* precision auto"):
        await server.register(precision="bf16")


async def test_one_planner_may_be_asked_for(server: Server) -> None:
    server.device.narrow = {
        "tf32": (took(80, 1e-4), took(70, 1e-4)),
        "fp16": (took(60, 1e-3), took(50, 1e-3)),
    }

    await registered(server, planner=PlannerSettings("greedy"), precision="auto")

    schedule = served(server)
    assert (schedule.precision, schedule.planner) == ("fp16", "greedy")


async def test_equal_plans_have_equal_names_whoever_chose_their_precision(server: Server) -> None:
    server.device.narrow = {"tf32": (took(80), took(70)), "fp16": (took(60), took(50))}
    asked = await registered(server, name="asked", planner=PORTFOLIO, precision="fp16")
    assert asked.state is JobStatus.READY
    plain = served(server)
    server.models.plans.clear()

    chosen = await auto(server)

    assert chosen.key.id != plain.key.id
    assert chosen.plan_id == plain.plan_id


async def test_a_file_of_fp16_may_err_as_fp16_does_in_fp32(server: Server) -> None:
    server.importer.narrow_type = "FP16"
    server.device.precisions, server.device.runtimes = ("fp32", "bf16"), (OPENVINO,)
    server.device.in_runtimes = {(OPENVINO, "fp32"): took(40, 3e-3)}

    job = await registered(server, planner=PORTFOLIO)

    schedule = served(server)
    assert (job.state, schedule.runtime) == (JobStatus.READY, OPENVINO)
    assert (schedule.precision, schedule.provenance.tolerance) == ("fp32", 1e-2)


async def test_a_file_of_bf16_is_computed_in_bf16_where_that_is_faster(server: Server) -> None:
    server.importer.narrow_type = "BF16"
    server.device.precisions = ("fp32", "bf16", "int8")
    server.device.narrow = {"bf16": (took(60, 4e-2), took(50, 4e-2))}

    await registered(server, planner=PORTFOLIO)

    schedule = served(server)
    assert (schedule.precision, schedule.key.precision) == ("bf16", "fp32")
    assert schedule.provenance.tolerance == 5e-2
    assert not any("int8" in each.full_name for each in schedule.provenance.candidates)
