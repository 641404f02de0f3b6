"""Files that several servers share, and what each keeps of them."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from braid.core.errors import DamagedArtefact, StartupError
from braid.server.fleet.files.place import open_place
from braid.server.store.records import ReceivedUpload
from braid.server.store.shared_files import ARTEFACT, UPLOAD
from tests.server.fleet.files.nodes import Node, nodes, objects_in, value

LARGE = bytes(range(256)) * (80 << 10)  # 20 MiB: several parts


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Node]]:
    with nodes(tmp_path, 2) as made:
        yield made


def flip(path: Path, offset: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def contents(artefact: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in artefact.iterdir()}


@pytest.mark.parametrize("content", [b"a model", LARGE])
async def test_an_upload_that_one_node_kept_is_what_another_fetches(
    two: list[Node], content: bytes
) -> None:
    one, other = two
    made = await one.register("m", one.received(content))

    await other.files.fetch(UPLOAD, made.model.sha256)

    assert other.store.folder.upload(made.model.sha256).read_bytes() == content


async def test_an_artefact_is_the_same_folder_on_another_node(two: list[Node]) -> None:
    one, other = two
    artefact = one.imported("a" * 64, weights=LARGE)

    await one.files.keep_artefact("a" * 64)
    await other.files.fetch(ARTEFACT, "a" * 64)

    assert contents(other.store.folder.artefact("a" * 64)) == contents(artefact)
    assert [path.name for path in other.store.folder.uploads.iterdir()] == []


async def test_what_nobody_put_is_fetched_by_nobody(two: list[Node]) -> None:
    await two[0].files.fetch(UPLOAD, "b" * 64)
    await two[0].files.fetch(ARTEFACT, "b" * 64)

    assert not two[0].store.folder.upload("b" * 64).exists()
    assert two[0].seen.fetches == [("uploads", "nowhere"), ("artefacts", "nowhere")]


async def test_a_file_is_put_once(two: list[Node], tmp_path: Path) -> None:
    for node in two:
        await node.files.keep_upload(node.received(b"a model"))

    assert [node.seen.puts for node in two] == [["uploads"], []]
    assert len(objects_in(tmp_path)) == 1


async def test_fetches_at_once_are_one(two: list[Node]) -> None:
    one, other = two
    made = await one.register("m", one.received(LARGE))

    await asyncio.gather(*(other.files.fetch(UPLOAD, made.model.sha256) for _ in range(5)))

    assert sorted(other.seen.fetches) == [("uploads", "cache")] * 4 + [("uploads", "shared")]


async def test_a_damaged_object_is_refused_and_named(two: list[Node], tmp_path: Path) -> None:
    one, other = two
    one.imported("a" * 64)
    await one.files.keep_artefact("a" * 64)
    (damaged,) = objects_in(tmp_path)
    flip(damaged, 5000)

    with pytest.raises(DamagedArtefact, match=f"artefacts/{damaged.name}"):
        await other.files.fetch(ARTEFACT, "a" * 64)

    assert not other.store.folder.artefact("a" * 64).exists()


@pytest.mark.parametrize("how", ["flipped", "lost", "cut"])
async def test_a_damaged_object_is_put_again_by_who_has_the_file(
    two: list[Node], tmp_path: Path, how: str
) -> None:
    one, other = two
    made = await one.register("m", one.received(b"a model"))
    (damaged,) = objects_in(tmp_path)
    {"flipped": flip, "lost": Path.unlink, "cut": lambda path: path.write_bytes(b"a")}[how](damaged)
    with pytest.raises(DamagedArtefact):
        await other.files.fetch(UPLOAD, made.model.sha256)

    await one.register("m", one.received(b"a model"))
    await other.files.fetch(UPLOAD, made.model.sha256)

    assert other.store.folder.upload(made.model.sha256).read_bytes() == b"a model"


async def test_an_object_that_was_away_for_a_while_is_not_damaged(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    made = await one.register("m", one.received(b"a model"))
    (away,) = objects_in(tmp_path)
    away.rename(tmp_path / "away")
    with pytest.raises(DamagedArtefact):
        await other.files.fetch(UPLOAD, made.model.sha256)
    (tmp_path / "away").rename(away)

    await other.files.fetch(UPLOAD, made.model.sha256)

    (found,) = one.store.find_objects(f"uploads/{made.model.sha256}")
    assert found.state.value == "PRESENT"


@pytest.mark.parametrize("what", ["upload", "weights", "report"])
async def test_a_damaged_file_of_the_cache_is_fetched_again(two: list[Node], what: str) -> None:
    one, other = two
    made = await one.register("m", one.received(b"a model"))
    sha256 = made.model.sha256
    artefact = one.imported(sha256)
    await one.files.keep_artefact(sha256)
    await other.files.fetch(UPLOAD, sha256)
    await other.files.fetch(ARTEFACT, sha256)
    folder = other.store.folder
    if what == "upload":
        flip(folder.upload(sha256))
    elif what == "weights":
        flip(folder.artefact(sha256) / "weights.safetensors")
    else:
        (folder.artefact(sha256) / "report.json").unlink()

    await other.files.fetch(UPLOAD, sha256)
    await other.files.fetch(ARTEFACT, sha256)

    assert folder.upload(sha256).read_bytes() == b"a model"
    assert contents(folder.artefact(sha256)) == contents(artefact)
    assert value(other.seen.damages) == 1


async def test_nodes_that_claim_a_place_at_once_all_have_it(
    two: list[Node], tmp_path: Path
) -> None:
    marked = [node.place._marked for node in two]
    looked = asyncio.Barrier(2)
    for node, look in zip(two, marked, strict=True):

        async def first_together(
            node: Node = node, look: Callable[[], Coroutine[Any, Any, str | None]] = look
        ) -> str | None:
            found = await look()
            node.place._marked = look  # type: ignore[method-assign]
            await looked.wait()
            return found

        node.place._marked = first_together  # type: ignore[method-assign]

    await asyncio.gather(*(node.place.claim("e" * 64) for node in two))

    assert (tmp_path / "shared" / "braid-fleet").read_text() == "e" * 64


async def test_a_put_whose_answer_was_lost_is_tried_again(two: list[Node], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a model")

    for _ in range(2):
        await two[0].place.put(f"uploads/{'d' * 64}.{'0' * 16}", tmp_path / "file")

    assert len(objects_in(tmp_path)) == 1


async def test_a_place_belongs_to_one_database(two: list[Node], tmp_path: Path) -> None:
    await two[0].files.start()
    await two[1].files.start()
    await two[0].files.stop()
    await two[1].files.stop()

    with pytest.raises(StartupError, match="belong to another database"):
        await two[0].place.claim("f" * 64)


async def test_a_new_database_takes_no_place_that_holds_files(
    two: list[Node], tmp_path: Path
) -> None:
    kept = tmp_path / "shared" / "artefacts" / f"{'c' * 64}.{'0' * 16}"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"of a database that is lost, or restored without its marker")

    for _ in range(2):
        with pytest.raises(StartupError, match=r"hold files of models.* check BRAID_DATABASE"):
            await two[0].files.start()

    assert [path.name for path in (tmp_path / "shared").rglob("*") if path.is_file()] == [kept.name]


async def test_a_database_that_had_shared_files_takes_a_place_restored_without_its_marker(
    two: list[Node], tmp_path: Path
) -> None:
    one, other = two
    await one.register("m", one.received(b"a model"))
    (tmp_path / "shared" / "braid-fleet").unlink()

    await other.files.start()
    await other.files.stop()

    assert (tmp_path / "shared" / "braid-fleet").exists()


def test_a_place_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StartupError, match="ftp://host/files cannot be used"):
        open_place("ftp://host/files")


KIB = 1024


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose cache takes 100 KiB, beside one that puts."""
    with nodes(tmp_path, 2, cache_bytes=100 * KIB) as (one, other):
        other.cache._limit_bytes = 0
        one.peer = other  # type: ignore[attr-defined]
        yield one


async def put(node: Node, *sizes: int) -> list[ReceivedUpload]:
    """Files of some sizes that the other node has put, of which each has another content."""
    peer: Node = node.peer  # type: ignore[attr-defined]
    made = [peer.received(bytes([number]) * size) for number, size in enumerate(sizes)]
    for received in made:
        await peer.files.keep_upload(received)
    return made


async def fetch(node: Node, received: ReceivedUpload, used_unix: int) -> None:
    await node.files.fetch(UPLOAD, received.sha256)
    os.utime(node.store.folder.upload(received.sha256), (used_unix, used_unix))


def held(node: Node, files: list[ReceivedUpload]) -> list[bool]:
    return [node.store.folder.upload(each.sha256).exists() for each in files]


async def test_the_least_recently_used_goes(node: Node) -> None:
    files = await put(node, 40 * KIB, 40 * KIB, 40 * KIB)
    await fetch(node, files[0], used_unix=10)
    await fetch(node, files[1], used_unix=20)
    await fetch(node, files[0], used_unix=30)

    await fetch(node, files[2], used_unix=40)

    assert held(node, files) == [True, False, True]
    assert value(node.seen.evictions) == 1


async def test_what_serves_and_what_is_in_use_stays(node: Node) -> None:
    files = await put(node, 40 * KIB, 40 * KIB, 40 * KIB, 10 * KIB)
    node.serving = {files[0].sha256}
    await fetch(node, files[0], used_unix=10)
    with node.files.in_use(files[1].sha256):
        await fetch(node, files[1], used_unix=20)
        await fetch(node, files[3], used_unix=30)
        await fetch(node, files[2], used_unix=40)

    assert held(node, files) == [True, True, True, False]


async def test_a_cache_too_small_for_what_serves_is_exceeded_and_says_so_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    files = await put(node, 80 * KIB, 80 * KIB)
    node.serving = {each.sha256 for each in files}

    with caplog.at_level(logging.WARNING, "braid.files"):
        await fetch(node, files[0], used_unix=10)
        await fetch(node, files[1], used_unix=20)
        await node.cache.make_room()

    assert held(node, files) == [True, True]
    assert [each.message for each in caplog.records] == [
        "what serves takes more than BRAID_MAX_CACHE_BYTES"
    ]
    assert value(node.seen.cache_bytes) == 160 * KIB


async def test_artefacts_go_as_a_whole_and_count_with_all_their_files(node: Node) -> None:
    peer: Node = node.peer  # type: ignore[attr-defined]
    for digit in "ab":
        peer.imported(digit * 64, weights=bytes(60 * KIB))
        await peer.files.keep_artefact(digit * 64)
    await node.files.fetch(ARTEFACT, "a" * 64)

    await node.files.fetch(ARTEFACT, "b" * 64)

    left = [path.name for path in node.store.folder.artefacts.iterdir()]
    assert left == ["b" * 64]


async def test_what_left_the_cache_is_fetched_again(node: Node) -> None:
    files = await put(node, 60 * KIB, 60 * KIB)
    for received in (*files, *files):
        await node.files.fetch(UPLOAD, received.sha256)
        assert node.store.folder.upload(received.sha256).stat().st_size == 60 * KIB

    assert value(node.seen.evictions) == 3
