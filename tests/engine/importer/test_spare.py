"""An importer that was started ahead imports like any other, and under the same limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from braid.core.errors import ImportLimitExceeded
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.process import ImporterProcess, SpareImporter
from braid.engine.importer.host.report import read_report
from braid.engine.importer.host.request import ImportLimits
from tests.clock import until
from tests.engine.importer.running import importers, left_in
from tests.engine.importer.test_launch import RELU
from tests.models.bad_onnx import slow


@pytest.fixture
async def spare() -> AsyncIterator[SpareImporter]:
    spare = SpareImporter()
    yield spare
    await spare.close()
    assert importers() == []


async def ready(spare: SpareImporter) -> psutil.Process:
    """The spare's process, which has given up its rights."""

    def is_confined() -> bool:
        return any("Seccomp:\t2" in status(process) for process in importers())

    spare.prepare()
    spare.prepare()
    await asyncio.to_thread(until, is_confined)
    (process,) = importers()
    return process


def status(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/status").read_text()


async def test_a_spare_imports_one_file_and_is_gone(
    tmp_path: Path, spare: SpareImporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, upload = await ready(spare), tmp_path / "upload"
    upload.write_bytes(RELU)

    async def start() -> NoReturn:
        raise AssertionError("the spare is to import it")

    monkeypatch.setattr(ImporterProcess, "start", start)
    await import_model(upload, tmp_path / "artefact", ImportLimits(), lambda *_: None, spare=spare)

    assert not process.is_running()
    assert importers() == []
    assert left_in(tmp_path) == ["artefact"]
    assert read_report(tmp_path / "artefact").size_bytes == len(RELU)


@pytest.mark.ci
async def test_limits_hold_for_a_spare(tmp_path: Path, spare: SpareImporter) -> None:
    await ready(spare)
    upload = tmp_path / "upload"
    upload.write_bytes(slow())

    with pytest.raises(ImportLimitExceeded, match="BRAID_IMPORT_CPU_SECONDS"):
        await import_model(
            upload, tmp_path / "artefact", ImportLimits(cpu_seconds=2), lambda *_: None, spare=spare
        )

    assert left_in(tmp_path) == []


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; one that is ending has no command line already."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_spare_that_was_killed_is_not_missed(tmp_path: Path, spare: SpareImporter) -> None:
    process, upload = await ready(spare), tmp_path / "upload"
    upload.write_bytes(RELU)
    process.kill()
    await asyncio.to_thread(until, lambda: has_ended(process))

    await import_model(upload, tmp_path / "artefact", ImportLimits(), lambda *_: None, spare=spare)

    assert left_in(tmp_path) == ["artefact"]
