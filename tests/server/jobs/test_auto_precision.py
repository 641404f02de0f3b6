"""Precisions that a registration asks for or leaves to measurements, and the samples it gives."""

import hashlib
import io
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest

from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest
from braid.core.measurement import PlanMeasurement
from braid.core.precision import INT8
from braid.core.program import as_scheduled
from braid.core.runtimes import OPENVINO
from braid.core.schedule import Schedule
from braid.engine.importer.host.samples import digest_of
from braid.scheduler.options import PlannerSettings
from braid.server.jobs.registration import serve_again
from braid.server.servicers.uploads import SampleUpload
from braid.server.store.records import JobStatus, ReceivedUpload, Registration
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import registered, until_ended

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


ROWS = np.ones((3, 8), np.float32)


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


async def with_samples(
    server: Server,
    rows: np.ndarray,
    name: str = "lenet",
    options: ModelOptions = ModelOptions((1,), PlannerSettings("ios")),  # noqa: B008
) -> Registration:
    packed = io.BytesIO()
    np.savez(packed, x=rows)
    async with AsyncExitStack() as kept:
        upload = await kept.enter_async_context(server.store.receive(1000))
        samples = SampleUpload(server.store, 1 << 20, "", kept)
        await samples.write(packed.getvalue())
        given = await samples.received()
        assert given is not None
        await upload.write(b"a model")
        received = await upload.finish(hashlib.sha256(b"a model").hexdigest())
        received = replace(received, samples=given)
        options = replace(options, samples=given.digest)
        return await server.runner.register(name, received, options)


async def test_errors_are_measured_on_samples_until_the_last_version_with_them_is_gone(
    server: Server,
) -> None:
    made = await with_samples(server, ROWS)
    other = await with_samples(server, ROWS, name="other")
    jobs = [(await until_ended(server, each.job.id))[-1] for each in (made, other)]
    file = server.store.folder.sample_file(made.model.options.samples)

    assert [job.state for job in jobs] == [JobStatus.READY] * 2
    assert server.device.samples == str(file)
    assert server.importer.samples == file
    schedules = server.store.schedules_of(made.model.sha256)
    assert {each.provenance.samples for each in schedules} == {3}
    assert not (await with_samples(server, ROWS)).is_new_job
    await server.store.call(server.store.delete_model, "lenet", 1)
    assert file.is_file(), "the other model has the same samples"
    await server.store.call(server.store.delete_model, "other", 1)
    assert not file.exists()


async def test_a_file_whose_import_tried_nothing_is_imported_again_with_samples(
    server: Server,
) -> None:
    server.importer.needs_samples = True
    await registered(server)
    plain = server.store.find_model("lenet", 1)
    made = await with_samples(server, ROWS)
    other = await with_samples(server, ROWS, name="other")
    jobs = [(await until_ended(server, each.job.id))[-1] for each in (made, other)]

    assert [job.state for job in jobs] == [JobStatus.READY] * 2
    assert server.importer.imports == 2, "both have the same samples"
    rows = {key: server.store.find_model(*key) for key in (("lenet", 2), ("other", 1))}
    (own,) = {row.artefact for row in rows.values()}
    assert own not in (plain.artefact, plain.sha256)
    assert plain.artefact == plain.sha256 == rows["other", 1].sha256
    assert not server.store.schedules_for(plain.sha256, plain.options, "fake-cpu")
    assert server.store.schedules_for(plain.sha256, made.model.options, "fake-cpu")
    assert not (await with_samples(server, ROWS)).is_new_job

    again = await server.restarted()
    try:
        for row in again.store.models():
            await serve_again(row, again.services)
        assert set(again.device.loads) == {own, plain.sha256}
        folder = again.store.folder
        again.store.delete_model("lenet", 2)
        assert folder.has_artefact(own)
        again.store.delete_model("other", 1)
        assert not folder.has_artefact(own)
        assert folder.has_artefact(plain.sha256)
    finally:
        await again.stop()


async def test_a_version_of_an_earlier_store_serves_on_untried_where_its_file_is_gone(
    server: Server,
) -> None:
    server.importer.needs_samples = True
    await registered(server)
    plain = server.store.find_model("lenet", 1)
    digest = digest_of({"x": ROWS})
    np.savez(server.store.folder.root / "samples.npz", x=ROWS)
    (server.store.folder.root / "samples.npz").rename(server.store.folder.sample_file(digest))
    options = replace(plain.options, samples=digest)

    received = ReceivedUpload(None, plain.sha256, plain.size_bytes)
    made = await server.runner.register("lenet", received, options)

    assert (await until_ended(server, made.job.id))[-1].state is JobStatus.READY
    assert server.importer.imports == 1
    assert server.store.find_model("lenet", 2).artefact == plain.sha256


async def test_a_file_whose_import_tried_something_is_not_imported_again_with_samples(
    server: Server,
) -> None:
    await registered(server)
    made = await with_samples(server, ROWS)

    await until_ended(server, made.job.id)

    assert server.importer.imports == 1
    assert server.store.find_model("lenet", 2).artefact == made.model.sha256


async def test_samples_survive_a_restart_and_what_no_version_has_does_not(server: Server) -> None:
    made = await with_samples(server, ROWS)
    await until_ended(server, made.job.id)
    file = server.store.folder.sample_file(made.model.options.samples)
    other = await with_samples(server, 2 * ROWS, name="other")
    await until_ended(server, other.job.id)
    left_behind = server.store.folder.sample_file(other.model.options.samples)
    await server.store.call(server.store.delete_model, "other", 1)
    left_behind.write_bytes(b"of a crash before the file was removed")

    again = await server.restarted()
    await again.stop()

    assert file.is_file()
    assert not left_behind.exists()


async def test_samples_that_do_not_fit_fail_the_job_before_the_model_serves(server: Server) -> None:
    made = await with_samples(server, np.ones((3, 7), np.float32))

    job = (await until_ended(server, made.job.id))[-1]

    assert job.state is JobStatus.FAILED
    assert "give [samples, 8]" in job.message
    assert not server.models.serving


async def test_samples_without_end_are_refused(server: Server) -> None:
    async with AsyncExitStack() as kept:
        samples = SampleUpload(server.store, 10, "", kept)
        await samples.write(b"12345")
        with pytest.raises(InvalidRequest, match="BRAID_MAX_SAMPLES_BYTES"):
            await samples.write(b"123456")
    assert not list(server.store.folder.uploads.iterdir())
