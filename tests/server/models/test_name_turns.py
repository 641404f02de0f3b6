"""Changes of one model name go one after the other: load, unload, SetServing, delete.

Each change stops at a gate, where a device loads a version; another change of the same name is
begun meanwhile, and must find what the first one has left when it is done.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest

from braid.core.errors import ModelImportError, ModelNotFound, PreconditionFailed
from braid.core.shapes import ShapeMemory
from braid.server.devices.pool import Devices
from braid.server.jobs.runner import JobRunner
from braid.server.models.loading import ModelLoader
from braid.server.models.policies import VersionPolicies
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.store.records import ModelStatus
from braid.server.store.serving_config import BatchPolicy, ServingConfig, VersionPolicy
from tests.server.jobs.fakes import FakeDevice, Server

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
