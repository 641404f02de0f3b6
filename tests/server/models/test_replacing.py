import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import ModelOptions
from braid.core.errors import DeviceOutOfMemory, InvalidRequest
from braid.server.store.records import JobRecord, JobStatus, ModelStatus
from braid.server.store.store import Store
from tests.server.models.test_name_turns import Names


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Replaced(Names):
    async def place(
        self,
        content: bytes,
        version: int = 2,
        sizes: tuple[int, ...] = (1,),
        check: InvalidRequest | None = None,
    ) -> JobRecord:
        """Let ``content`` serve as a version; returns the end of the job."""

        def look(imported: ImportedModel) -> None:
            if check is not None:
                raise check

        async with self.server.store.receive(1000) as upload:
            await upload.write(content)
            received = await upload.finish(sha256(content))
            made = await self.server.runner.place(
                "net", received, ModelOptions(sizes), version, look
            )
        async for job in self.server.runner.watch(made.job.id):
            end = job
        return end

    @property
    def answers_with(self) -> dict[int, str]:
        return {each.version: each.digest for each in self.models.all_served()}

    @property
    def artefacts(self) -> set[str]:
        return {path.name for path in self.server.store.folder.artefacts.iterdir()}


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[Replaced]:
    """Versions 1 (unloaded) and 2 (answers) of "net"."""
    names = Replaced(tmp_path / "store")
    await names.start()
    yield names
    await names.server.stop()


OLD, NEW = sha256(b"version 2"), sha256(b"new")


async def test_new_bytes_take_the_place_of_old_ones(net: Replaced) -> None:
    kept_before = net.device.kept[OLD]

    end = await net.place(b"new")

    assert end.state is JobStatus.READY
    assert net.answers_with == {2: NEW}
    assert net.server.store.find_model("net", 2).sha256 == NEW
    assert net.artefacts == {sha256(b"version 1"), NEW}
    assert (kept_before, net.device.kept[OLD]) == (1, 0)
    assert list(net.server.store.folder.uploads.iterdir()) == []


async def test_other_options_take_the_place_of_old_ones(net: Replaced) -> None:
    await net.place(b"version 2", sizes=(1, 4))

    (served,) = net.models.all_served()
    assert (served.digest, served.batch_sizes) == (OLD, (1, 4))
    assert net.device.kept[OLD] == 1


@pytest.mark.parametrize("what", ["import", "device", "check"])
async def test_what_never_serves_leaves_everything_as_it_was(net: Replaced, what: str) -> None:
    before = net.server.store.models("net"), net.artefacts
    error = InvalidRequest("not what is declared")
    if what == "import":
        net.server.importer.error = error
    if what == "device":
        net.device.refusal = DeviceOutOfMemory("no room")

    end = await net.place(b"new", check=error if what == "check" else None)

    assert end.state is JobStatus.FAILED
    assert end.message == ("no room" if what == "device" else str(error))
    assert net.answers_with == {2: OLD}
    assert (net.server.store.models("net"), net.artefacts) == before
    assert net.models.as_seen(before[0][1]).message == ""


@pytest.mark.parametrize("is_broken", [False, True])
async def test_what_serves_is_scheduled_until_other_bytes_serve(
    net: Replaced, is_broken: bool
) -> None:
    may_plan = asyncio.Event()

    async def wait() -> None:
        await may_plan.wait()

    net.server.planner.before_planning = wait
    made = await net.server.register("net", b"version 3")
    await until_answers(net, 3, sha256(b"version 3"))
    if is_broken:
        net.server.importer.error = InvalidRequest("broken")

    placing = asyncio.create_task(net.place(b"new", version=3))
    if is_broken:
        assert (await placing).state is JobStatus.FAILED
        may_plan.set()
    async for job in net.server.runner.watch(made.job.id):
        end = job
    may_plan.set()
    await placing

    assert end.state is (JobStatus.READY if is_broken else JobStatus.CANCELLED)
    assert net.server.store.find_model("net", 3).message == ""


async def until_answers(net: Replaced, version: int, digest: str) -> None:
    while net.answers_with.get(version) != digest:
        await net.server.store.call(lambda: None)


async def test_the_same_place_can_be_taken_again_and_again(net: Replaced) -> None:
    for content in (b"new", b"newer", b"new", b"version 2"):
        await net.place(content)
        assert net.answers_with == {2: sha256(content)}

    assert len(net.artefacts) == 2


async def test_a_version_that_does_not_serve_is_replaced_at_once(net: Replaced) -> None:
    await net.place(b"new", version=1)
    assert net.answers_with == {1: NEW, 2: OLD}

    await net.policies.delete("net", "1")
    await net.place(b"again", version=1)
    assert net.answers_with == {1: sha256(b"again"), 2: OLD}
    assert net.server.store.placed() == {("net", 1)}


async def test_a_version_that_is_deleted_meanwhile_is_gone(net: Replaced) -> None:
    ends = await net.interleave(replaced(net), net.policies.delete("net", "2"))

    assert ends == [None, None]
    assert net.answers_with == {1: sha256(b"version 1")}, "which the policy wants instead"
    assert net.states == {1: ModelStatus.SERVING}
    assert net.artefacts == {sha256(b"version 1")}
    assert net.server.store.placed() == set()


async def replaced(net: Replaced) -> None:
    end = await net.place(b"new")
    assert end.state is JobStatus.CANCELLED


async def test_a_crash_meanwhile_leaves_what_was_there(net: Replaced, tmp_path: Path) -> None:
    net.close_gate()
    store = net.server.store
    async with store.receive(1000) as upload:
        await upload.write(b"new")
        received = await upload.finish(NEW)
        await net.server.runner.place("net", received, ModelOptions(), 2, lambda imported: None)
    await net.is_at_gate.wait()
    net.server.store.folder.close()  # as the kernel does

    after = Store.open(tmp_path / "store")
    try:
        assert after.find_model("net", 2).sha256 == OLD
        assert after.find_model("net", 2).state is ModelStatus.SERVING
        assert {path.name for path in after.folder.artefacts.iterdir()} == {
            sha256(b"version 1"),
            OLD,
        }
    finally:
        after.close()
