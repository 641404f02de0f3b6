import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.core.child_process import child_environment
from braid.engine.processes.child import ChildProcess, Streams
from braid.engine.processes.log_lines import LOGGER
from braid.server.observability.logs import (
    JsonFormatter,
    TextFormatter,
    WorkerLogs,
    configure_logging,
    printable,
    request_id,
)


def configure(form: Literal["json", "text"]) -> io.StringIO:
    """Log to the stream that is returned until the test ends (tests/conftest.py)."""
    stream = io.StringIO()
    configure_logging("INFO", form, stream)
    return stream


def test_a_json_event_carries_its_fields_and_the_request() -> None:
    stream = configure("json")
    token = request_id.set("5f0c")

    logging.getLogger("braid.jobs").info(
        "registered %s", "a", extra={"size_bytes": 12, "model": "a"}
    )

    request_id.reset(token)
    event = json.loads(stream.getvalue())
    assert event.pop("time").endswith("Z")
    assert event == {
        "level": "INFO",
        "logger": "braid.jobs",
        "message": "registered a",
        "request_id": "5f0c",
        "size_bytes": 12,
        "model": "a",
    }


HOSTILE = "a\nERROR forged\r\x1b[31m\u2028\u202e\x00\udc80"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_value_can_forge_a_line(form: Literal["json", "text"]) -> None:
    stream = configure(form)

    logging.getLogger("braid").info("from %s", HOSTILE, extra={"model": HOSTILE})

    line = stream.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert "forged" in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_cannot_forge_a_line_either(form: Literal["json", "text"]) -> None:
    stream = configure(form)

    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("braid").exception("failed")

    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert first.isprintable()
    assert bool(rest) == (form == "text")
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)
    assert "ValueError" in stream.getvalue()


def test_a_long_value_is_cut_and_says_so() -> None:
    assert printable("x" * 1000, 10) == "xxxxxxxxxx... (990 more characters)"


@given(st.text())
def test_printable_text_is_left_alone_and_the_rest_becomes_printable(text: str) -> None:
    shown = printable(text, 10_000)

    assert shown.isprintable()
    assert shown == text or not text.isprintable()


def test_values_with_spaces_are_quoted_in_text() -> None:
    stream = configure("text")

    logging.getLogger("braid").info("x", extra={"model": 'a b="c"', "empty": "", "n": 3})

    assert stream.getvalue().endswith('model="a b=\\"c\\"" empty="" n=3\n')


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
