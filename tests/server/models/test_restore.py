import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import ModelOptions
from braid.compiler.retries import RetriesExhausted
from braid.core.background import ends_before
from braid.core.errors import (
    DeviceOutOfMemory,
    Draining,
    ModelLoading,
    ModelNotFound,
    PreconditionFailed,
    WorkerRestarting,
)
from braid.server.models.restore import Restore
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import BatchPolicy
from tests.server.jobs.fakes import AtOnce, Server


def version(
    name: str, number: int, state: ModelStatus = ModelStatus.SERVING, size_bytes: int = 1
) -> ModelVersion:
    return ModelVersion(name, number, "0" * 64, size_bytes, ModelOptions(), state)


@pytest.fixture
def models() -> ServingModels:
    devices = SimpleNamespace(all=[], named=lambda _: None)
    return ServingModels(cast(Any, devices), Metrics(), BatchPolicy())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "store")
    yield server
    await server.stop()


def test_models_that_are_being_restored_are_loading_the_others_unknown(
    models: ServingModels,
) -> None:
    models.restoring(version("a", 1))
    models.register(version("a", 2, ModelStatus.FAILED))

    for wanted in ("", "1"):
        refusal = models.for_request("a", wanted).refusal
        assert isinstance(refusal, ModelLoading)
        assert refusal.retry_after_s > 0
        assert "version 1 is being loaded" in str(refusal)
    assert isinstance(models.for_request("b", "").refusal, ModelNotFound)
    seen = models.as_seen(version("a", 1))
    assert (seen.state, seen.message) == (ModelStatus.LOADING, "is being loaded")
    assert not models.answers("a")


def test_what_could_not_be_restored_says_why(models: ServingModels) -> None:
    model = version("a", 1)
    models.restoring(model)

    models.restored(model, DeviceOutOfMemory("there is no room on cuda:0"))

    refusal = models.for_request("a", "").refusal
    assert isinstance(refusal, PreconditionFailed)
    assert "no room on cuda:0" in str(refusal)
    assert "no room on cuda:0" in models.as_seen(model).message
    assert models.missing_on("cuda:0") == [model]
    models.restored(model, RetriesExhausted(WorkerRestarting("the worker died"), 11))
    assert models.missing_on("cuda:0") == []


async def test_a_version_that_is_unloaded_before_it_is_restored_stays_unloaded(
    models: ServingModels,
) -> None:
    models.restoring(version("a", 1))

    await models.unload(version("a", 1, ModelStatus.UNLOADED))

    assert not models.is_coming("a", 1)
    assert models.to_restore == []


async def test_registrations_wait_until_models_are_restored(server: Server) -> None:
    registering = asyncio.create_task(server.register())
    cancelling = asyncio.create_task(server.runner.cancel("nobody"))
    await asyncio.sleep(0.01)
    assert server.store.models() == []

    await server.runner.start()

    made = await registering
    assert made.is_new_job
    with pytest.raises(Exception, match="no job"):
        await cancelling


async def test_a_start_that_is_given_up_refuses_what_waits_for_its_end(server: Server) -> None:
    stopping, begun = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        begun.set()
        await asyncio.Future()

    starting = asyncio.create_task(ends_before(stopping, start()))
    cancelling = asyncio.create_task(server.runner.cancel("nobody"))
    await begun.wait()
    stopping.set()

    assert not await starting
    server.runner.release_watchers()
    with pytest.raises(Draining):
        await cancelling


async def test_a_model_deleted_while_it_is_withdrawn_stays_deleted(models: ServingModels) -> None:
    model = version("a", 1)
    models.register(model)
    await models.remove("a", 1)

    assert not await models.leave(model, "cpu")
    assert not models.knows("a")


async def test_small_models_come_first_and_one_that_fails_stops_no_other(
    server: Server, models: ServingModels
) -> None:
    await server.runner.start()
    for name, content in (("large", b"1" * 300), ("small", b"2"), ("middle", b"3" * 20)):
        made = await server.register(name, content)
        async for _ in server.runner.watch(made.job.id):
            pass
    again = await server.restarted()
    asyncio.get_running_loop().set_default_executor(AtOnce())  # so that files are read in order
    served: list[str] = []
    serve = again.models.serve

    async def serve_or_fail(model: ModelVersion, imported: ImportedModel, device: str) -> None:
        served.append(model.name)
        if model.name == "small":
            raise RuntimeError("a fault of the server")
        await serve(model, imported, device)

    again.models.serve = serve_or_fail  # type: ignore[method-assign]
    restore = Restore(again.services, models)
    try:
        await restore.know()
        await restore.serve()
    finally:
        await again.stop()

    assert served == ["small", "middle", "large"]
    assert again.models.serving == {("middle", 1), ("large", 1)}
    assert "internal error" in models.as_seen(version("small", 1)).message
