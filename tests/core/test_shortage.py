import asyncio
import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.core.errors import DamagedArtefact, InvalidArtefact, SystemShortage, Unavailable
from braid.core.shortage import shortage, unreadable
from braid.engine.importer.host.launch import import_model, importer_process
from braid.engine.importer.host.report import check_files
from braid.engine.importer.host.request import ImportLimits
from braid.server.rpc.status import status_code, status_message
from braid.server.store.records import ModelVersion
from tests.server.jobs.fakes import template, write_artefact

DIGEST = "1" * 64


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Let this process open no file while the context is open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.EMFILE, "descriptors"),
        (errno.ENFILE, "descriptors"),
        (errno.EAGAIN, "processes"),
        (errno.ENOMEM, "memory"),
    ],
)
def test_callers_read_what_is_lacking_and_try_again(number: int, what: str) -> None:
    error = RuntimeError("of a library")
    error.__cause__ = OSError(number, "told by its number")

    found = shortage(error)

    assert isinstance(found, Unavailable)
    assert f"no {what} left for now; try again" in str(found)
    assert status_code(OSError(number, "x")) is grpc.StatusCode.UNAVAILABLE
    assert status_message(OSError(number, "x")) == str(found)


def test_other_errors_lack_nothing() -> None:
    for error in (FileNotFoundError(2, "x"), OSError(errno.EIO, "x"), ValueError("x"), None):
        assert shortage(error) is None
    assert isinstance(unreadable("graph.json", FileNotFoundError(2, "gone")), InvalidArtefact)
    assert status_code(FileNotFoundError(2, "x")) is grpc.StatusCode.INTERNAL


def test_an_artefact_is_not_damaged_for_want_of_descriptors(tmp_path: Path) -> None:
    artefact = tmp_path / DIGEST
    write_artefact(artefact, DIGEST, template())
    model = ModelVersion("m", 1, DIGEST, 1, ModelOptions())

    with without_descriptors():
        with pytest.raises(SystemShortage):
            check_files(artefact, DIGEST)
        with pytest.raises(SystemShortage):
            read_imported(model.sha256, model.options, artefact)

    check_files(artefact, DIGEST)
    (artefact / "graph.json").unlink()
    with pytest.raises(DamagedArtefact):
        read_imported(model.sha256, model.options, artefact)


def free_descriptors() -> list[int]:
    """Numbers that the next descriptors get."""
    used = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return sorted(set(range(len(used) + 16)) - used)


async def transports_are_closed() -> None:
    for _ in range(3):  # they close their descriptors a turn later
        await asyncio.sleep(0)


@pytest.mark.parametrize("left", range(5))
async def test_an_importer_that_cannot_start_leaves_no_descriptor_behind(left: int) -> None:
    async with importer_process():  # libuv keeps a descriptor from its first stream on
        pass
    await transports_are_closed()
    process = psutil.Process()
    before, limit = process.num_fds(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_descriptors()[left], limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            async with importer_process():
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    await transports_are_closed()

    assert process.num_fds() == before


async def test_an_import_that_cannot_start_is_tried_again_by_its_job(tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(b"whatever it is")

    with without_descriptors(), pytest.raises(SystemShortage, match="try again"):
        await import_model(upload, tmp_path / "artefact", ImportLimits(), lambda *_: None)
