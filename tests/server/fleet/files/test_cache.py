import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid.server.store.records import ReceivedUpload
from braid.server.store.shared_files import ARTEFACT, UPLOAD
from tests.server.fleet.files.nodes import Node, nodes, value

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
