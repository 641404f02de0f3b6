import asyncio
import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidUpload, ResourceExhausted, UploadTooLarge
from braid.server.store.records import JobStatus
from braid.server.store.store import Store
from tests.server.store.registering import end, import_done, register


async def send(store: Store, chunks: Sequence[bytes], digest: str, limit_bytes: int) -> None:
    async with store.receive(limit_bytes) as upload:
        for chunk in chunks:
            await upload.write(chunk)
        await upload.finish(digest)


async def test_an_upload_is_checked_and_kept_only_if_registered(store: Store) -> None:
    digest = hashlib.sha256(b"ab").hexdigest()

    async with store.receive(100) as upload:
        await upload.write(b"a")
        await upload.write(b"b")
        received = await upload.finish(digest.upper())
        assert received.path is not None
        assert received.path.read_bytes() == b"ab"
        made = await store.call(store.register, "lenet", received, ModelOptions())
    async with store.receive(100) as upload:
        await upload.write(b"never finished")

    assert (made.model.sha256, made.model.size_bytes) == (digest, 2)
    assert [path.name for path in store.folder.uploads.iterdir()] == [digest]


@pytest.mark.parametrize(
    ("content", "digest", "problem"),
    [
        (b"", hashlib.sha256(b"").hexdigest(), "empty"),
        (b"ab", hashlib.sha256(b"a").hexdigest(), "send the file again"),
        (b"ab", "", "not 64 hexadecimal digits"),
        (b"ab", "../../etc/passwd", "not 64 hexadecimal digits"),
    ],
)
async def test_a_bad_upload_is_refused_and_leaves_no_file(
    store: Store, content: bytes, digest: str, problem: str
) -> None:
    with pytest.raises(InvalidUpload, match=problem):
        await send(store, [content], digest, limit_bytes=100)

    assert not list(store.folder.uploads.iterdir())


async def test_an_upload_over_the_limit_stops_at_the_limit(store: Store) -> None:
    with pytest.raises(UploadTooLarge, match="larger than 10 bytes"):
        await send(store, [b"123456"] * 1000, "", limit_bytes=10)

    assert not list(store.folder.uploads.iterdir())


async def test_a_full_disk_is_the_callers_to_know(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    async with store.receive(10) as upload:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ResourceExhausted, match="disk is full"):
            await upload.write(b"x")
        monkeypatch.undo()


async def test_a_cancelled_upload_leaves_no_file(store: Store) -> None:
    async def endless() -> None:
        async with store.receive(10**9) as upload:
            while True:
                await upload.write(b"x" * 100_000)

    task = asyncio.create_task(endless())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not list(store.folder.uploads.iterdir())


def test_what_a_full_disk_kept_goes_with_the_next_removal_unless_it_is_needed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, needed, last = (register(store, name, name.encode()) for name in ("gone", "back", "last"))
    for made in (gone, needed, last):
        import_done(store, made.model.artefact)
        end(store, made, JobStatus.READY)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "rename", refuse)
        for made in (gone, needed):
            store.delete_model(made.model.name, made.model.version)
    assert store.folder.has_artefact(gone.model.artefact)
    register(store, "again", b"back")
    store.delete_model(last.model.name, last.model.version)

    kept = {path.name for path in store.folder.artefacts.iterdir()}
    assert kept == {needed.model.artefact}
