import asyncio
import gc
import logging
import os
import resource
import socket
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from braid.core import removal
from braid.core.descriptors import Descriptor, connect
from braid.core.regular_file import NoRegularFile, open_file, read_file
from braid.core.removal import remove_folder
from tests.attack.strange_files import NO_FILES, PIECE, sparse


@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str) -> None:
    make, words = NO_FILES[name]
    make(tmp_path / "it")

    with pytest.raises(OSError, match=words) as refused:
        open_file(tmp_path / "it")

    assert refused.value.filename == str(tmp_path / "it")


def test_a_file_behind_a_link_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")

    with open_file(tmp_path / "link") as file:
        assert file.read() == b"content"


class Exchanged(type(Path())):  # type: ignore[misc]
    """A path at which a file lies when it is looked at, and a pipe when it is opened."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(__file__)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = Exchanged(tmp_path / "it")
    os.mkfifo(path)
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(NoRegularFile, match="it is a pipe"):
        open_file(path)

    assert set(os.listdir("/proc/self/fd")) == before


def test_a_sparse_file_is_read_to_its_limit_only(tmp_path: Path) -> None:
    sparse(tmp_path / "it")

    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="it is larger than 1000 bytes"):
            read_file(tmp_path / "it", 1000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < PIECE


def test_a_file_of_its_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"x" * 1000)

    assert read_file(tmp_path / "it", 1000) == b"x" * 1000


def test_a_small_file_takes_little_memory_whatever_its_limit(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"x" * 1000)

    assert read_file(tmp_path / "it", 1 << 50) == b"x" * 1000
    assert read_file(Path("/proc/self/cmdline"), 1 << 50), "it says that it has 0 bytes"


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_a_number_that_another_file_has_got_is_not_closed_again() -> None:
    owner = Descriptor(os.open(os.devnull, os.O_RDONLY))
    number = owner.fileno()
    owner.close()
    with open(os.devnull) as other:
        assert other.fileno() == number, "the lowest free number is taken"

        owner.close()
        del owner
        gc.collect()

        assert is_open(number)


def test_a_close_that_fails_is_not_tried_again() -> None:
    number = os.open(os.devnull, os.O_RDONLY)
    owner = Descriptor(number)
    os.close(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        owner.close()

    owner.close()
    with pytest.raises(ValueError, match="is closed"):
        owner.fileno()


def test_the_last_reference_closes_it_also_in_another_thread() -> None:
    owner = Descriptor(os.eventfd(0))
    number, may_end = owner.fileno(), threading.Event()

    def work(counter: Descriptor) -> None:
        may_end.wait()
        os.eventfd_write(counter.fileno(), 1)

    thread = threading.Thread(target=work, args=(owner,))
    thread.start()
    del owner
    assert is_open(number)

    may_end.set()
    thread.join()
    del thread
    assert not is_open(number)


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_caller_that_is_cancelled_leaves_no_socket(turns: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        connecting = asyncio.ensure_future(connect(asyncio.Protocol, ours))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        with suppress(asyncio.CancelledError):
            (await connecting)[0].close()

        async with asyncio.timeout(120):
            assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "FIRST_S", 0.1)


def full(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("x")
    return folder


def until_gone(folder: Path) -> None:
    while os.path.lexists(folder):
        time.sleep(0.02)


def test_a_folder_is_gone_at_once(tmp_path: Path) -> None:
    remove_folder(full(tmp_path / "a"))
    remove_folder(tmp_path / "missing")

    assert list(tmp_path.iterdir()) == []


def test_without_descriptors_a_folder_is_removed_later(tmp_path: Path) -> None:
    folder = full(tmp_path / "a")

    with no_descriptors():
        remove_folder(folder)
        assert (folder / "inner" / "file").exists()

    until_gone(folder)


def test_a_temporary_folder_is_removed_later_as_it_would_be_at_once(tmp_path: Path) -> None:
    made = tempfile.TemporaryDirectory(dir=tmp_path, ignore_cleanup_errors=True)
    folder = full(Path(made.name))

    with no_descriptors():
        remove_folder(folder, made.cleanup)
        assert (folder / "inner" / "file").exists()

    until_gone(folder)


def test_what_stays_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = full(tmp_path / "a")
    monkeypatch.setattr(removal, "LAST_S", 0.2)

    with caplog.at_level(logging.WARNING):
        remove_folder(folder, lambda: None)
        while str(folder) not in caplog.text:
            time.sleep(0.02)
