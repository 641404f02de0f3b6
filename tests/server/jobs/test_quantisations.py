from dataclasses import replace

import numpy as np
import pytest

from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest
from braid.core.precision import INT8
from braid.core.program import as_scheduled
from braid.core.schedule import Schedule
from braid.scheduler.options import PlannerSettings
from braid.server.store.records import JobStatus, Registration
from tests.server.jobs.fakes import Server
from tests.server.jobs.test_auto_precision import took
from tests.server.jobs.test_samples import with_samples
from tests.server.jobs.watching import registered, until_ended

ROWS = np.ones((3, 8), np.float32)
PORTFOLIO = PlannerSettings("portfolio")


def options(precision: str, *sizes: int) -> ModelOptions:
    return ModelOptions(sizes or (1,), PORTFOLIO, precision=precision)


@pytest.fixture
def on_integers(server: Server) -> Server:
    server.device.precisions = ("fp32", "bf16", INT8)
    server.device.narrow = {"bf16": (took(120), took(110)), INT8: (took(40), took(30))}
    return server


async def schedules(server: Server, made: Registration) -> list[Schedule]:
    job = (await until_ended(server, made.job.id))[-1]
    assert job.state is JobStatus.READY, job.message
    return server.store.schedules_of(made.model.sha256)


async def test_auto_serves_integers_that_were_calibrated_once_for_all_batch_sizes(
    on_integers: Server,
) -> None:
    made = await with_samples(on_integers, ROWS, options=options("auto", 1, 4))

    found = await schedules(on_integers, made)

    device = on_integers.device
    assert [each.precision for each in found] == [INT8, INT8]
    ((program, samples, tolerance),) = device.calibrated
    assert program.specs["x"].shape == (1, 8), "one row at a time"
    assert (program.precision, tolerance) == ("fp32", 1e-2)
    assert samples == device.samples
    assert [each.provenance.quantisation for each in found] == [device.quantisation] * 2
    artefact = on_integers.store.folder.artefact(made.model.sha256)
    imported = read_imported(made.model.sha256, made.model.options, artefact)
    ran = as_scheduled(imported.program(4), found[1])
    assert (ran.precision, ran.quantisation) == (INT8, device.quantisation.text)


async def test_a_batch_size_that_comes_after_a_restart_has_the_same_graph(
    on_integers: Server,
) -> None:
    (first,) = await schedules(
        on_integers, await with_samples(on_integers, ROWS, options=options(INT8, 1))
    )
    again = await on_integers.restarted()
    try:
        again.device.precisions = on_integers.device.precisions
        assert first.provenance.quantisation is not None
        again.device.quantisation = replace(first.provenance.quantisation, wide=())
        made = await with_samples(again, ROWS, options=options(INT8, 1, 4))
        found = await schedules(again, made)
    finally:
        await again.stop()

    assert not again.device.calibrated
    assert [each.provenance.quantisation for each in found] == [first.provenance.quantisation] * 2


async def test_ranges_are_part_of_a_plans_name(on_integers: Server) -> None:
    (one,) = await schedules(
        on_integers, await with_samples(on_integers, ROWS, options=options(INT8))
    )
    how = one.provenance.quantisation
    assert how is not None
    other = replace(how, ranges={"x": (-2.0, 2.0)})
    changed = replace(one, provenance=replace(one.provenance, quantisation=other))
    assert changed.plan_id != one.plan_id


async def test_without_samples_int8_is_refused_and_auto_goes_on_without_it(
    on_integers: Server,
) -> None:
    with pytest.raises(InvalidRequest, match=r"int8 takes .* from samples .* --samples FILE.npz"):
        await on_integers.register(precision=INT8)

    job = await registered(on_integers, planner=PORTFOLIO, precision="auto")

    assert job.state is JobStatus.READY, job.message
    (found,) = on_integers.models.plans.values()
    assert found.precision == "fp32"
    assert "--samples" in found.provenance.left_out[INT8]
    assert not on_integers.device.calibrated


async def test_a_model_that_cannot_be_calibrated_is_refused_or_goes_on_in_fp32(
    on_integers: Server,
) -> None:
    on_integers.device.calibration_error = InvalidRequest("no convolution has FP32 weights")
    made = await with_samples(on_integers, ROWS, options=options("auto"))
    (found,) = await schedules(on_integers, made)
    assert found.precision == "fp32"
    assert found.provenance.left_out == {INT8: "no convolution has FP32 weights"}

    made = await with_samples(on_integers, ROWS, name="fixed", options=options(INT8))
    job = (await until_ended(on_integers, made.job.id))[-1]
    assert job.state is JobStatus.UNSCHEDULED
    assert "no convolution has FP32 weights" in job.message
