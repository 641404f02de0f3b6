"""Logs: one line an event, whatever the values are."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.server.observability.logs import configure_logging, printable, request_id

Configure = Callable[[Literal["json", "text"]], io.StringIO]


@pytest.fixture
def configure() -> Iterator[Configure]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def to_memory(form: Literal["json", "text"]) -> io.StringIO:
        stream = io.StringIO()
        configure_logging("INFO", form, stream)
        return stream

    yield to_memory
    root.handlers[:] = before
    root.setLevel(level)


def test_a_json_event_carries_its_fields_and_the_request(configure: Configure) -> None:
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
def test_no_value_can_forge_a_line(configure: Configure, form: Literal["json", "text"]) -> None:
    stream = configure(form)

    logging.getLogger("braid").info("from %s", HOSTILE, extra={"model": HOSTILE})

    line = stream.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert "forged" in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_cannot_forge_a_line_either(
    configure: Configure, form: Literal["json", "text"]
) -> None:
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


def test_values_with_spaces_are_quoted_in_text(configure: Configure) -> None:
    stream = configure("text")

    logging.getLogger("braid").info("x", extra={"model": 'a b="c"', "empty": "", "n": 3})

    assert stream.getvalue().endswith('model="a b=\\"c\\"" empty="" n=3\n')
