"""Models of the same bytes share what is loaded: the end of one takes it from no other."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.server.devices.device import Device
from braid.server.devices.pool import Devices
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.store.files import StoreFolder
from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import BatchPolicy, ServingConfig
from tests.server.devices.fake_worker import OPTIONS, FakeWorker
from tests.server.jobs.fakes import AtOnce, template, write_artefact

NAMES, DIGESTS = ("a", "b", "c"), ("1" * 64, "2" * 64)
SIZES = 2  # of batches that models are registered for
ENOUGH_TURNS = 60  # of the event loop, for everything that waits for no answer to happen


class SameBytes(RuleBasedStateMachine):
    """Jobs begin, go on, are cancelled and end, models are deleted, all of it interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        folder = StoreFolder(Path(self._folder.name))
        folder.open()
        for digest in DIGESTS:
            write_artefact(folder.artefact(digest), digest, template())
        self.store = folder
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(AtOnce())
        self.worker = FakeWorker()
        self.jobs: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[int, asyncio.Task[None]] = {}  # by version
        self.runs: dict[str, list[asyncio.Task[int]]] = {name: [] for name in NAMES}
        self.model: dict[str, ModelVersion] = {}
        self.version = 0
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        self.device = Device("cpu", OPTIONS, make_link=lambda *_: cast(Any, self.worker))
        devices = SimpleNamespace(all=[self.device], named=lambda _: self.device)
        self.models = ServingModels(cast(Devices, devices), Metrics(), BatchPolicy())

    @rule(name=st.sampled_from(NAMES), digest=st.sampled_from(DIGESTS))
    def register(self, name: str, digest: str) -> None:
        if name not in self.model:
            self.version += 1
            options = ModelOptions((1, 2))
            self.model[name] = ModelVersion(name, self.version, digest, 1, options)
            self.models.register(self.model[name])
            self.jobs[name] = self.loop.create_task(self._job(self.model[name]))
            self._settle()

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.model:
            model = self.model.pop(name)
            ending = self._delete(model, self.jobs.pop(name))
            self.ends[model.version] = self.loop.create_task(ending)
            self._settle()

    @rule(answers=st.integers(1, 6))
    def worker_answers(self, answers: int) -> None:
        for _ in range(answers):
            if self.worker.calls:
                self.worker.answer()
                self._settle()

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from((1, 2)))
    def infer(self, name: str, size: int) -> None:
        """A request that was accepted is answered, whatever ends behind it."""
        if name in self.model:
            replicas = self.models.served_version(name, self.model[name].version)
            if replicas is not None:
                self.runs[name].append(self.loop.create_task(self._infer(replicas.any, size)))
                self._settle()

    async def _job(self, model: ModelVersion) -> None:
        async with self.device.keeping(model.sha256):
            await self.device.load(model.sha256, self.store.artefact(model.sha256))
            artefact = self.store.artefact(model.sha256)
            imported = read_imported(model.sha256, model.options, artefact)
            await self.models.serve(model, imported, "cpu")
            served = self.models.served_version(model.name, model.version)
            assert served is not None
            for size in (1, 2):
                await served.any.use_plan(size)

    async def _delete(self, model: ModelVersion, job: asyncio.Task[None]) -> None:
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job
        await asyncio.gather(*self.runs[model.name])  # as the queue's drain does
        await self.models.remove(model.name, model.version)

    async def _infer(self, served: Any, size: int) -> int:
        ready = await served.executable(served.profiled, size)
        served.begin_use(ready)
        try:
            return (await self.device.run(ready, 0)).compute_us
        finally:
            served.end_use(ready)

    def _settle(self) -> None:
        async def turns() -> None:
            for _ in range(ENOUGH_TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def teardown(self) -> None:
        """Everything ends well, and nothing stays loaded without a user."""
        try:
            self._finish()
            serving = len(self.models.all_served())
            assert len(self.worker.executables) == SIZES * serving  # none is left of others
            for name in NAMES:
                self.delete(name)
            self._finish()
            for task in (
                *self.ends.values(),
                *(run for runs in self.runs.values() for run in runs),
            ):
                task.result()
            assert (self.worker.models, self.worker.executables) == (set(), {})
        finally:
            self.loop.close()
            self.device.arena.close()
            self.store.close()
            self._folder.cleanup()

    def _finish(self) -> None:
        self._settle()
        while self.worker.calls:
            self.worker.answer()
            self._settle()


SameBytes.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_no_end_of_a_model_takes_anything_from_another = SameBytes.TestCase


def test_configurations_of_deleted_models_do_not_add_up() -> None:
    models = ServingModels(cast(Devices, SimpleNamespace(all=[])), Metrics(), BatchPolicy())
    models.configure("a", ServingConfig(labels={"stable": 1}))

    models.configure("a", ServingConfig())  # as when its last version is deleted

    assert models.configs() == {}
    assert models.config("a") == ServingConfig()
