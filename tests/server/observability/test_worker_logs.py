"""What a worker logs and prints, as the server logs it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from braid.core.child_process import child_environment
from braid.engine.processes.child import ChildProcess, Streams
from braid.engine.processes.log_lines import LOGGER
from braid.server.observability.logs import JsonFormatter, TextFormatter
from braid.server.observability.worker_logs import WorkerLogs

TALKATIVE = "tests.engine.processes.talkative"


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Records that pass the filter of a server whose model "net" has the child's digest."""
    kept: list[logging.LogRecord] = []
    log, handler = logging.getLogger(LOGGER), logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign, assignment]
    names = WorkerLogs(lambda digest: "net version 1" if digest == "ab" * 32 else "")
    log.addHandler(handler)
    log.addFilter(names)
    yield kept
    log.removeFilter(names)
    log.removeHandler(handler)


async def test_lines_of_a_worker_are_records_with_names_one_for_each_cause(
    records: list[logging.LogRecord],
) -> None:
    for _ in range(2):
        child = await ChildProcess.start(
            TALKATIVE, environment=child_environment(), streams=Streams.LOGGED
        )
        async with asyncio.timeout(120):
            assert (await child.wait()).status == 0

    shown = [json.loads(JsonFormatter().format(record)) for record in records]
    (warned,) = [each for each in shown if each["message"].startswith("runs otherwise")]
    assert warned["message"] == r"runs otherwise: Check failed:\nat the end"
    assert warned.items() >= {("model", "net version 1"), ("level", "WARNING")}
    assert (warned["logger"], "digest" in warned) == ("braid.executor", False)
    assert warned["time"].endswith("Z")
    failed = [each for each in shown if each["message"] == "call 7 failed"]
    assert len(failed) == 2, "errors are told each time"
    assert failed[0]["trace"][-1] == "ValueError: why"
    error = next(record for record in records if record.levelno == logging.ERROR)
    assert "  | ValueError: why" in TextFormatter().format(error)
    printed = [each["text"] for each in shown if each["message"] == "a worker printed"]
    assert "of a library" in printed
    assert any(text.startswith("xxx") for text in printed)
    assert any('"level": "x"' in text for text in printed)
    assert any("old" in text for text in printed), "warnings of Python"
    assert not any("small" in str(each) for each in shown)
