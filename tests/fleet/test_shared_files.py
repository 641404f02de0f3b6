"""Shared files on a real S3: large ones in parts, away, full, refused, changed by others."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from braid.core.errors import ResourceExhausted, StartupError
from braid.server.fleet.files.place import open_place
from braid.server.fleet.records import FilesGone, SharedFilesAway
from braid.server.fleet.tables.objects import ObjectState, StoredObject
from braid.server.store.records import ReceivedUpload, Registration
from braid.server.store.shared_files import UPLOAD
from tests.clock import until
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3
from tests.server.fleet.files.nodes import Node, nodes
from tests.server.fleet.files.test_object_files import (  # noqa: F401
    test_a_place_belongs_to_one_database,
    test_an_artefact_is_the_same_folder_on_another_node,
    test_an_upload_that_one_node_kept_is_what_another_fetches,
)

pytestmark = pytest.mark.fleet

LARGE = os.urandom(1 << 20) * 30


@pytest.fixture
def environment(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The S3 server, whose address and credentials are this process's."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def two(environment: S3, postgres_server: Postgres, tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes with a database and a folder of the bucket that no other test uses."""
    name = f"files-{secrets.token_hex(4)}"
    database = make_url(postgres_server.create(name))
    with nodes(tmp_path, 2, f"s3://{environment.bucket}/{name}", database=database) as made:
        yield made


async def test_puts_registrations_and_sweeps_at_once_leave_every_upload(
    two: list[Node], environment: S3
) -> None:
    one, other = two
    sweeping = asyncio.create_task(_sweep_on(other))

    made = await asyncio.gather(
        *(
            _registered(node, f"{name}-{number}", node.received(bytes([number]) * 1000))
            for number, name in enumerate("abcdefgh")
            for node in (one, other)
        )
    )
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)

    objects = environment.objects()
    for registration in made:
        found = one.store.find_objects(f"uploads/{registration.model.sha256}")
        assert any(
            path.endswith(each.key) and each.state.value == "PRESENT"
            for each in found
            for path in objects
        )


async def _registered(node: Node, name: str, received: ReceivedUpload) -> Registration:
    """Register until it is done: a sweep may come between put and rows again and again."""
    while True:
        try:
            return await node.register(name, received)
        except FilesGone:
            continue


async def _sweep_on(node: Node) -> None:
    while True:
        await node.sweep()


async def test_without_s3_calls_say_so_in_bounded_time_and_go_on_when_it_is_back(
    two: list[Node], environment: S3
) -> None:
    one, other = two
    made = await one.register("m", one.received(b"a model"))
    environment.stop()
    try:
        async with asyncio.timeout(60):
            with pytest.raises(SharedFilesAway) as away:
                await other.files.fetch(UPLOAD, made.model.sha256)
            with pytest.raises(SharedFilesAway):
                await one.files.keep_upload(one.received(b"another"))
    finally:
        environment.start()

    assert away.value.retry_after_s
    await other.files.fetch(UPLOAD, made.model.sha256)
    await one.register("n", one.received(b"another"))
    assert (one.seen.failed, other.seen.failed) == (["put"], ["fetch"])


async def test_s3_that_ends_in_the_middle_of_a_put_leaves_nothing(
    two: list[Node], environment: S3
) -> None:
    one, other = two
    large = one.received(os.urandom(1 << 20) * 400)
    putting = asyncio.create_task(one.files.keep_upload(large))
    await asyncio.to_thread(until, lambda: one.files.putting)
    environment.stop()
    try:
        # A server that ends may fail the put first and answer a read: then it counts as full.
        with pytest.raises((SharedFilesAway, ResourceExhausted)):
            await putting
    finally:
        environment.start()
    assert one.store.find_objects(f"uploads/{large.sha256}") == []

    await one.files.keep_upload(large)
    one.age()
    await other.sweep()

    prefix = one.place.url.removeprefix(f"s3://{environment.bucket}/")
    found = [path for path in environment.objects() if path.startswith(f"{prefix}/")]
    assert found == [f"{prefix}/braid-fleet"]


@pytest.mark.parametrize("wrong", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
async def test_wrong_credentials_end_the_start_with_one_line(
    environment: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(wrong, "wrong-and-secret")
    with (
        nodes(tmp_path, 1, f"s3://{environment.bucket}/x") as (node,),
        pytest.raises(StartupError, match="credentials are refused") as refused,
    ):
        await node.files.start()

    assert "\n" not in str(refused.value)
    assert "wrong-and-secret" not in str(refused.value)


async def test_credentials_may_stand_in_a_file(
    environment: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s3.env"
    lines = [f"{name}={value}\n" for name, value in environment.environment.items()]
    file.write_text("# of the bucket\n\nexport " + "".join(lines))
    for name in environment.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of another store")

    await open_place(f"s3://{environment.bucket}/{tmp_path.name}-file", file).claim("database")

    assert any(f"{tmp_path.name}-file/" in path for path in environment.objects())


async def test_a_bucket_that_does_not_exist_ends_the_start_with_one_line(
    environment: S3, tmp_path: Path
) -> None:
    with (
        nodes(tmp_path, 1, "s3://no-such-bucket/x") as (node,),
        pytest.raises(StartupError, match="no such bucket; create it"),
    ):
        await node.files.start()


async def test_a_bucket_that_is_gone_damages_no_object(environment: S3, tmp_path: Path) -> None:
    with nodes(tmp_path, 1, "s3://no-such-bucket/x") as (node,):
        key = f"uploads/{'a' * 64}.{'0' * 16}"
        node.store.begin_object(StoredObject(key, "a" * 64, 5))
        node.store.finish_object(key)

        with pytest.raises(SharedFilesAway):
            await node.files.fetch(UPLOAD, "a" * 64)

        [found] = node.store.find_objects(f"uploads/{'a' * 64}")
    assert found.state is ObjectState.PRESENT


async def test_a_full_s3_is_resource_exhausted_and_nothing_is_half_done(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        small = S3(tmp_path_factory.mktemp("small") / "server", disk_mb=300)
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    for name, value in small.environment.items():
        monkeypatch.setenv(name, value)
    try:
        small.start()
        with nodes(tmp_path, 1, f"s3://{small.bucket}/full") as (node,):
            made = await node.register("m", node.received(b"a model"))
            small.fill()
            large = node.received(LARGE)
            with pytest.raises(ResourceExhausted) as full:
                await node.register("n", large)
            assert full.value.retry_after_s
            assert [each.name for each in node.store.models()] == ["m"]
            assert node.store.find_objects(f"uploads/{large.sha256}") == []
            node.store.folder.upload(made.model.sha256).unlink()
            await node.files.fetch(UPLOAD, made.model.sha256)  # what is there is read
    finally:
        small.stop()
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(small._folder)], check=True)


_STREAMS = """
import asyncio, resource, sys
from pathlib import Path
from tests.server.fleet.files.nodes import nodes

async def stream(folder, url):
    with nodes(folder, 2, url) as (one, other):
        part = one.store.folder.new_part()
        with part.open("wb") as file:
            for number in range(512):
                file.write(bytes([number % 251]) * (1 << 20))
        import hashlib
        from braid.server.store.records import ReceivedUpload
        from braid.server.store.shared_files import UPLOAD
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await one.register("m", ReceivedUpload(part, sha256, 512 << 20))
        await other.files.fetch(UPLOAD, sha256)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)

asyncio.run(stream(Path(sys.argv[1]), sys.argv[2]))
"""


def test_a_file_of_half_a_gigabyte_takes_a_few_parts_of_memory(
    environment: S3, tmp_path: Path
) -> None:
    url = f"s3://{environment.bucket}/{tmp_path.name}-stream"
    command = [sys.executable, "-c", _STREAMS, str(tmp_path), url]

    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 200  # MiB, put and fetch together
