"""A sweep removes what no row needs, and never what any server uses or puts, however slow."""

import asyncio
from collections.abc import Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from braid.server.fleet.tables.objects import StoredObject
from braid.server.store.records import JobStatus, ReceivedUpload
from braid.server.store.shared_files import UPLOAD
from tests.clock import until_true
from tests.server.fleet.files.nodes import Node, nodes, objects_in
from tests.server.store.registering import end

MODEL = b"a model"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Node]]:
    with nodes(tmp_path, 2) as made:
        yield made


class Gate:
    """Stops calls of a node's place before or after they do their work, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def stop(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def stopped(
    node: Node, where: str, work: Coroutine[Any, Any, Any]
) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """Begin work that stands still before or after a put, or before a deletion; what lets it go."""
    gate, put, delete = Gate(), node.place.put, node.place.delete

    async def stopping_put(key: str, path: Path) -> None:
        if where == "before the put":
            await gate.stop()
        await put(key, path)
        if where == "after the put":
            await gate.stop()

    async def stopping_delete(keys: Collection[str]) -> None:
        if keys and where == "before the deletion":
            await gate.stop()
        await delete(keys)

    node.place.put, node.place.delete = stopping_put, stopping_delete  # type: ignore[method-assign]
    task = asyncio.create_task(work)
    await gate.reached.wait()
    return task, gate.opened


async def fetched(node: Node, received: ReceivedUpload) -> bytes:
    await node.files.fetch(UPLOAD, received.sha256)
    return node.store.folder.upload(received.sha256).read_bytes()


async def test_a_sweep_that_fails_is_not_the_last_one(two: list[Node], tmp_path: Path) -> None:
    one, _ = two
    await one.files.keep_upload(one.received(MODEL))
    delete, tries = one.place.delete, 0

    async def deleted(keys: Collection[str]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise AssertionError("a bug")
        await delete(keys)

    one.place.delete = deleted  # type: ignore[method-assign]
    one.age()
    one.files._grace_s = 0.06
    await one.files.start()
    await until_true(lambda: objects_in(tmp_path) == [])
    await one.files.stop()

    assert tries > 1
    assert one.seen.failed == ["sweep"]


async def test_one_server_sweeps_at_a_time(two: list[Node]) -> None:
    one, other = two
    await one.files.keep_upload(one.received(MODEL))
    one.age(11.0)

    assert [node.store.takes_sweep(10.0) for node in (one, other)] == [True, False]

    one.age(11.0)  # it died
    assert other.store.takes_sweep(10.0)


async def test_what_a_model_needs_stays(two: list[Node], tmp_path: Path) -> None:
    one, other = two
    made = await one.register("m", one.received(MODEL))
    one.imported(made.model.sha256)
    await one.files.keep_artefact(made.model.sha256)
    one.age()

    assert await other.sweep() == 0
    assert len(objects_in(tmp_path)) == 2


async def test_an_upload_goes_once_its_job_has_ended_and_an_artefact_with_its_model(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    made = await one.register("m", one.received(MODEL))
    one.imported(made.model.sha256)
    await one.files.keep_artefact(made.model.sha256)
    end(one.store, made, JobStatus.READY)
    one.age()
    assert await other.sweep() == 1
    assert [path.parent.name for path in objects_in(tmp_path)] == ["artefacts"]

    one.store.delete_model("m", 1)
    one.age()

    assert await other.sweep() == 1
    assert objects_in(tmp_path) == []


async def test_what_a_model_needed_a_moment_ago_stays_for_the_grace_time(
    two: list[Node], tmp_path: Path
) -> None:
    """A backup copies objects after the dump that needs them."""
    one, other = two
    await one.register("m", one.received(MODEL))
    one.age()
    assert await other.sweep(100.0) == 0
    one.store.delete_model("m", 1)

    assert await other.sweep(100.0) == 0
    one.age(101.0)
    assert await other.sweep(100.0) == 1
    assert objects_in(tmp_path) == []


async def test_a_put_that_takes_longer_than_the_grace_time_is_not_swept(two: list[Node]) -> None:
    one, other = two
    putting, go_on = await stopped(
        one, "before the put", one.files.keep_upload(one.received(MODEL))
    )
    one.age()

    one.store.touch_objects(one.files.putting)

    assert await other.sweep(100.0) == 0
    go_on.set()
    await putting
    assert one.seen.puts == ["uploads"]


async def test_a_sweep_between_put_and_commit_costs_a_second_put(two: list[Node]) -> None:
    one, other = two
    received = one.received(MODEL)
    await one.files.keep_upload(received)
    one.age()
    assert await other.sweep() == 1

    await one.store_rows("m", received)

    assert await fetched(other, received) == MODEL
    assert one.seen.puts == ["uploads", "uploads"]


async def test_a_put_that_sleeps_past_a_sweep_is_put_again(two: list[Node]) -> None:
    one, other = two
    received = one.received(MODEL)
    putting, go_on = await stopped(one, "after the put", one.register("m", received))
    one.age()

    assert await other.sweep() == 1
    go_on.set()
    await putting

    assert await fetched(other, received) == MODEL
    one.age()
    assert await other.sweep() == 0


async def test_a_put_that_arrives_after_its_sweep_leaves_nothing(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    received = one.received(MODEL)
    putting, go_on = await stopped(one, "before the put", one.files.keep_upload(received))
    one.age()
    assert await other.sweep(100.0) == 1
    go_on.set()
    await putting
    await other.sweep(100.0)

    (left,) = objects_in(tmp_path)  # of the second put
    (row,) = one.store.find_objects(f"uploads/{received.sha256}")
    assert row.key == f"uploads/{left.name}"


async def test_a_put_that_a_sweep_condemned_is_not_finished(two: list[Node]) -> None:
    one, other = two
    key = f"uploads/{'a' * 64}.{'0' * 16}"
    one.store.begin_object(StoredObject(key, "a" * 64, 7))
    one.age()
    await other.sweep(100.0)

    assert not one.store.finish_object(key)
    assert one.store.find_objects(f"uploads/{'a' * 64}") == []


async def test_a_node_killed_in_a_put_leaves_what_a_sweep_removes(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    putting, _ = await stopped(one, "after the put", one.files.keep_upload(one.received(MODEL)))
    putting.cancel()
    await asyncio.gather(putting, return_exceptions=True)
    assert len(objects_in(tmp_path)) == 1

    one.age()
    await other.sweep()

    assert objects_in(tmp_path) == []


async def test_two_nodes_that_put_the_same_leave_one_object(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    received = one.received(MODEL)
    putting, go_on = await stopped(one, "before the put", one.register("m", received))
    await other.register("n", other.received(MODEL))
    go_on.set()
    await putting
    assert len(objects_in(tmp_path)) == 2

    one.age()
    await one.sweep()

    assert len(objects_in(tmp_path)) == 1
    other.store.folder.upload(received.sha256).unlink()
    assert await fetched(other, received) == MODEL


async def test_a_sweep_that_sleeps_before_its_deletion_takes_nothing_that_came_later(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    await one.files.keep_upload(one.received(MODEL))
    one.age()
    sleeping, go_on = await stopped(other, "before the deletion", other.sweep())
    received = one.received(MODEL)
    await one.register("m", received)
    one.age()
    assert await one.sweep() == 1  # goes on where the other sleeps
    go_on.set()
    await sleeping

    assert len(objects_in(tmp_path)) == 1
    one.store.folder.upload(received.sha256).unlink()
    assert await fetched(one, received) == MODEL


async def test_an_object_without_a_row_stays(two: list[Node], tmp_path: Path) -> None:
    """It may be another database's, or of this one before it was restored from a backup."""
    one, _ = two
    keys = [f"uploads/{'c' * 64}.{'0' * 16}", "uploads/notes.txt", "other/thing.bin"]
    for key in keys:
        path = tmp_path / "shared" / key
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"x")

    assert await one.sweep() == 0

    assert all((tmp_path / "shared" / key).exists() for key in keys)


async def test_an_object_that_arrives_after_its_deletion_is_deleted_again(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    await one.files.keep_upload(one.received(MODEL))
    (late,) = objects_in(tmp_path)
    one.age()
    assert await other.sweep(100.0) == 1
    late.write_bytes(MODEL)  # by a put that its caller gave up

    assert await other.sweep(100.0) == 0
    assert objects_in(tmp_path) == []

    one.age(101.0)
    await other.sweep(100.0)
    late.write_bytes(MODEL)
    assert await other.sweep(100.0) == 0
    assert objects_in(tmp_path) == [late]  # its row is gone
