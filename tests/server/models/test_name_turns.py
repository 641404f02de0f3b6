"""Changes of one model name take turns; models of the same bytes share what is loaded."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.core.errors import ModelImportError, ModelNotFound, PreconditionFailed
from braid.core.shapes import ShapeMemory
from braid.server.devices.device import Device
from braid.server.devices.pool import Devices
from braid.server.jobs.runner import JobRunner
from braid.server.models.loading import ModelLoader
from braid.server.models.policies import VersionPolicies
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.store.files import StoreFolder
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import BatchPolicy, ServingConfig, VersionPolicy
from tests.server.devices.fake_worker import OPTIONS, FakeWorker
from tests.server.jobs.fakes import AtOnce, FakeDevice, Server, template, write_artefact

SETTLED = 100  # turns of the event loop and the store's thread, more than a change needs


@dataclass(eq=False)
class Prepared:
    """As much of an executable as a replica looks at."""

    to_run: object
    number: int
    size_bytes: int = 1


class KeepingDevice(FakeDevice):
    """Prepares anything."""

    shape_memory = ShapeMemory(1 << 20)
    numbers = count(1)

    def keep(self, digest: str) -> None:
        self.kept[digest] += 1

    async def let_go(self, digest: str, executables: object = ()) -> None:
        self.kept[digest] -= 1

    async def prepare(self, *asked: object) -> object:
        return Prepared(asked[0], next(self.numbers))

    async def release(self, ready: object) -> None:
        pass


class Names:
    """Versions 1 and 2 of "net" are imported; 2 answers, 1 is unloaded."""

    def __init__(self, root: Path) -> None:
        server = self.server = Server(root)
        self.device = KeepingDevice()
        found = SimpleNamespace(all=[self.device], named=lambda _: self.device)
        devices, store = cast(Devices, found), server.store
        self.models = ServingModels(
            devices,
            Metrics(),
            BatchPolicy(),
            on_version=lambda name, _: self.policies.version_serves(name),
        )
        services = replace(server.services, devices=[self.device], models=self.models)
        runner = server.runner = JobRunner(services)
        self.loader = ModelLoader(store, runner, self.models, 1000)
        self.policies = VersionPolicies(store, self.models, self.loader)
        self.is_at_gate, self.gate = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        await self.policies.restore()
        await self.server.runner.start()
        for version in (1, 2):
            made = await self.server.register("net", b"version %d" % version)
            async for _ in self.server.runner.watch(made.job.id):
                pass
        await self.loader.unload_version(self.server.store.find_model("net", 1))
        assert self.answering == {2}

    def close_gate(self) -> None:
        """The next version that is loaded waits for the gate."""

        async def wait() -> None:
            self.is_at_gate.set()
            await self.gate.wait()

        self.device.before_loading = wait

    async def interleave(
        self, first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]
    ) -> list[BaseException | None]:
        """Begin the second change while the first is at the gate; how both ended."""
        self.close_gate()
        tasks = [asyncio.create_task(first)]
        await self.is_at_gate.wait()
        tasks.append(asyncio.create_task(second))
        for _ in range(SETTLED):
            await self.server.store.call(lambda: None)
        self.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def states(self) -> dict[int, ModelStatus]:
        return {each.version: each.state for each in self.server.store.models("net")}

    @property
    def answering(self) -> set[int]:
        return {each.version for each in self.models.all_served()}


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[Names]:
    names = Names(tmp_path / "store")
    await names.start()
    yield names
    await names.server.stop()


FILE = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="g")).SerializeToString()
BOTH = ServingConfig(versions=VersionPolicy(specific=(1, 2)))


async def test_unload_waits_until_set_serving_is_done(names: Names) -> None:
    ends = await names.interleave(names.policies.configure("net", BOTH), names.loader.unload("net"))

    assert ends == [None, None]
    assert names.answering == set()
    assert set(names.states.values()) == {ModelStatus.UNLOADED}
    assert names.policies.config("net") == BOTH


async def test_set_serving_waits_until_a_load_is_done(names: Names) -> None:
    only_two = ServingConfig(versions=VersionPolicy(specific=(2,)))

    ends = await names.interleave(
        names.loader.load("net", {}, None), names.policies.configure("net", only_two)
    )

    assert ends == [None, None]
    assert names.answering == {2}
    assert names.states == {1: ModelStatus.UNLOADED, 2: ModelStatus.SERVING}


async def test_unload_waits_until_a_load_is_done(names: Names) -> None:
    ends = await names.interleave(names.loader.load("net", {}, None), names.loader.unload("net"))

    assert ends == [None, None]
    assert names.answering == set()


async def test_a_version_that_gets_a_label_meanwhile_is_not_deleted(names: Names) -> None:
    labelled = ServingConfig(versions=BOTH.versions, labels={"canary": 2})

    ends = await names.interleave(
        names.policies.configure("net", labelled), names.policies.delete("net", "2")
    )

    assert ends[0] is None
    assert isinstance(ends[1], PreconditionFailed)
    assert names.answering == {1, 2}
    assert names.models.number("net", "canary") == 2


async def test_delete_waits_until_set_serving_is_done(names: Names) -> None:
    ends = await names.interleave(
        names.policies.configure("net", BOTH), names.policies.delete("net", "")
    )

    assert ends == [None, None]
    with pytest.raises(ModelNotFound):
        names.policies.config("net")
    assert names.answering == set()
    assert await names.server.store.call(names.server.store.serving_configs) == {}


async def test_delete_ends_an_import_that_a_load_waits_for(names: Names) -> None:
    names.close_gate()
    load = asyncio.create_task(names.loader.load("net", {3: FILE}, None))
    await names.is_at_gate.wait()

    await names.policies.delete("net", "")

    with pytest.raises(ModelImportError, match="cancelled"):
        await load
    assert names.states == {}


async def test_a_refused_deletion_cancels_nothing(names: Names) -> None:
    labelled = ServingConfig(versions=VersionPolicy(specific=(2,)), labels={"canary": 2})
    await names.policies.configure("net", labelled)
    names.close_gate()
    load = asyncio.create_task(names.loader.load("net", {3: FILE}, None))
    await names.is_at_gate.wait()

    deletion = asyncio.create_task(names.policies.delete("net", "2"))
    for _ in range(SETTLED):
        await names.server.store.call(lambda: None)
    names.gate.set()

    with pytest.raises(PreconditionFailed):
        await deletion
    await load
    assert names.answering == {2, 3}


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
