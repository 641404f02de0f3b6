"""Whatever is registered, ended, deleted and cut off: the store stays sound.

Hypothesis drives a real store and a model of it in plain Python.
"""

import asyncio
import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import URL

from braid.compiler.options import ModelOptions
from braid.core.errors import ModelNotFound, VersionNotFound
from braid.server.store.records import JobRecord, JobStatus, ModelStatus
from braid.server.store.store import Store
from tests.server.store.databases import SharedDatabases

NAMES = st.sampled_from(["a", "b"])
CONTENTS = st.sampled_from([b"1", b"2", b"3"])
SIZES = st.sampled_from([(1,), (1, 4)])


class StoreMachine(RuleBasedStateMachine):
    """Rules are what a server does; invariants are what a restart relies on."""

    jobs: Bundle[JobRecord] = Bundle("jobs")

    def __init__(self, database: URL | None = None) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = database
        self.store = Store.open(Path(self.folder.name), database=database)
        self.numbers: dict[str, int] = {}
        self.ended: dict[str, JobStatus] = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(target=jobs, name=NAMES, content=CONTENTS, sizes=SIZES)
    def register(self, name: str, content: bytes, sizes: tuple[int, ...]) -> JobRecord:
        async def receive_and_register() -> JobRecord:
            async with self.store.receive(10) as upload:
                await upload.write(content)
                received = await upload.finish(hashlib.sha256(content).hexdigest())
                options = ModelOptions(sizes)
                made = self.store.register(name, received, options, "cpu")
                assert made.model.sha256 == received.sha256
                assert made.model.options == options
                assert made.model.version in (self.numbers.get(name, 0), made.job.version)
                assert made.model.version <= self.numbers.get(name, 0) + 1
                self.numbers[name] = max(self.numbers.get(name, 0), made.model.version)
                if made.is_new_job:
                    assert made.job.state is JobStatus.QUEUED
                else:
                    assert self.ended.get(made.job.id) in (None, JobStatus.READY)
                return made.job

        return asyncio.run(receive_and_register())

    @rule(job=jobs)
    def import_it(self, job: JobRecord) -> None:
        if job.id in self.ended or not self._exists(job):
            return
        sha256 = self.store.find_model(job.model, job.version).sha256
        if not self.store.folder.has_artefact(sha256):
            assert self.store.folder.upload(sha256).is_file()
            self.store.folder.artefact(sha256).mkdir()
            (self.store.folder.artefact(sha256) / "graph.json").touch()
        self.store.set_model_state(job.model, job.version, ModelStatus.SERVING)
        self.store.discard_upload(sha256)

    @rule(job=jobs, state=st.sampled_from([s for s in JobStatus if s.has_ended]))
    def end(self, job: JobRecord, state: JobStatus) -> None:
        if self._exists(job):
            model = self.store.find_model(job.model, job.version)
            if state is JobStatus.READY and model.state is not ModelStatus.SERVING:
                return
            self.store.end_job(replace(job, state=state, message="why"))
            self.store.discard_upload(model.sha256)
        else:
            self.store.end_job(replace(job, state=state))
        self.ended.setdefault(job.id, state)

    @rule(job=consumes(jobs))
    def delete(self, job: JobRecord) -> None:
        if self._exists(job):
            self.store.end_job(replace(job, state=JobStatus.CANCELLED))
            for each in self.store.unfinished_jobs():
                if (each.model, each.version) == (job.model, job.version):
                    self.store.end_job(replace(each, state=JobStatus.CANCELLED))
                    self.ended.setdefault(each.id, JobStatus.CANCELLED)
            self.ended.setdefault(job.id, JobStatus.CANCELLED)
            self.store.delete_model(job.model, job.version)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store.open(Path(self.folder.name), database=self.database)

    def _exists(self, job: JobRecord) -> bool:
        try:
            self.store.find_model(job.model, job.version)
        except (ModelNotFound, VersionNotFound):
            return False
        return True

    @invariant()
    def what_an_unfinished_job_needs_is_there(self) -> None:
        for job in self.store.unfinished_jobs():
            sha256 = self.store.find_model(job.model, job.version).sha256
            folder = self.store.folder
            assert folder.has_artefact(sha256) or folder.upload(sha256).is_file()

    @invariant()
    def a_serving_model_has_its_artefact(self) -> None:
        for model in self.store.models():
            if model.state is ModelStatus.SERVING:
                assert self.store.folder.has_artefact(model.sha256)

    @invariant()
    def no_file_is_left_that_nobody_needs(self) -> None:
        digests = {model.sha256 for model in self.store.models()}
        names = {path.name for path in self.store.folder.artefacts.iterdir()}
        names |= {path.name for path in self.store.folder.uploads.iterdir()}
        assert names <= digests

    @invariant()
    def an_end_is_final(self) -> None:
        for job_id, state in self.ended.items():
            assert self.store.find_job(job_id).state is state


USUAL = settings(
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_store_stays_sound() -> None:
    run_state_machine_as_test(StoreMachine, settings=USUAL)


def test_a_store_with_a_shared_database_stays_sound(shared_databases: SharedDatabases) -> None:
    class SharedStoreMachine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(shared_databases.make())

    run_state_machine_as_test(SharedStoreMachine, settings=USUAL)
