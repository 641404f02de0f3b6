import hashlib
import io
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest

from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest
from braid.engine.importer.host.samples import digest_of
from braid.scheduler.options import PlannerSettings
from braid.server.jobs.registration import serve_again
from braid.server.servicers.uploads import SampleUpload
from braid.server.store.records import JobStatus, ReceivedUpload, Registration
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import registered, until_ended

ROWS = np.ones((3, 8), np.float32)


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
