"""Folders that cannot be removed at once."""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braid.core import removal
from braid.core.removal import remove_folder


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
