"""Only regular files are opened, and none is read beyond its limit."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from braid.core.regular_file import NoRegularFile, open_file, read_file
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
