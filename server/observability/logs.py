r"""Structured logs: one line an event, every line with the id of the request it belongs to.

    log.info("registered", extra={"model": name, "size_bytes": size})

    json  {"time": "2026-01-31T12:00:00.123Z", "level": "INFO", "logger": "braid.jobs",
           "message": "registered", "request_id": "5f0c...", "model": "squeezenet", ...}
    text  2026-01-31T12:00:00.123Z INFO  braid.jobs  registered  request_id=5f0c... model=squeezenet

Text that people copy out of a log (``Verbatim``) has a line of its own below, uncut and unquoted.
Whatever came with a request is data: control characters are escaped and long values cut, so no
caller can write a log line of their own. A traceback in text form is indented by ``  | ``, which
no event begins with.
"""

import json
import logging
import math
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

MAX_VALUE_CHARS = 512  # of one field
MAX_MESSAGE_CHARS = 4096

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request being answered. Each RPC runs in a task of its own, so it never leaks."""

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def new_request_id() -> str:
    return os.urandom(8).hex()


def printable(value: object, limit: int = MAX_VALUE_CHARS) -> str:
    r"""Return ``value`` as one line: unprintable characters as ``\x1b``, cut after ``limit``."""
    text = str(value)
    cut = len(text) - limit
    if cut > 0:
        text = text[:limit]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
    return f"{text}... ({cut} more characters)" if cut > 0 else text


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ``extra`` of a record, and the request id."""
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    facts = {name: value for name, value in given.items() if name[0] != "_"}  # Ray adds such
    current = request_id.get()
    return {"request_id": current, **facts} if current else facts


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[0] is None:
        return (record.exc_text or "").splitlines()  # of another process
    return "".join(traceback.format_exception(*record.exc_info)).splitlines()


class Verbatim(str):
    """Value of the server's own making that is shown as it is, on a line of its own."""

    __slots__ = ()


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage(), MAX_MESSAGE_CHARS),
        }
        for name, value in _fields(record).items():
            plain = value is None or isinstance(value, bool | int | float)
            document.setdefault(name, value if plain else _shown(value))
        if trace := _trace(record):
            document["trace"] = [printable(line) for line in trace]
        return json.dumps(document)


class TextFormatter(logging.Formatter):
    """Formatter of one aligned line, for people; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        message = printable(record.getMessage(), MAX_MESSAGE_CHARS)
        line = f"{_time(record)} {record.levelname:<7} {record.name}  {message}"
        given = _fields(record)
        below = [text for text in given.values() if isinstance(text, Verbatim)]
        fields = " ".join(
            f"{name}={_quoted(value)}"
            for name, value in given.items()
            if not isinstance(value, Verbatim)
        )
        trace = "".join(f"\n  | {_shown(text)}" for text in (*below, *_trace(record)))
        return f"{line}  {fields}{trace}" if fields else f"{line}{trace}"


def _shown(value: object) -> str:
    return printable(value, MAX_MESSAGE_CHARS if isinstance(value, Verbatim) else MAX_VALUE_CHARS)


def _quoted(value: object) -> str:
    text = printable(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


def configure_logging(
    level: str = "INFO", form: Literal["json", "text"] = "text", stream: TextIO | None = None
) -> None:
    """Send all logs of this process to ``stream`` (stderr). Called once, by the program."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


@dataclass(slots=True)
class Seldom:
    """Limit of one logged event in so many seconds; counts the events between."""

    _seconds: float
    _clock: Callable[[], float] = time.monotonic
    _next: float = -math.inf
    _held_back: int = 0

    def passes(self) -> int | None:
        """Return the number of events not logged before this one; None: do not log it."""
        now = self._clock()
        if now < self._next:
            self._held_back += 1
            return None
        held_back, self._held_back = self._held_back, 0
        self._next = now + self._seconds
        return held_back


AGAIN_SECONDS = 3600.0
"""Time after which a cause in a worker that goes on is logged again."""

MAX_CAUSES = 1024


@dataclass(slots=True, eq=False)
class WorkerLogs:
    """Filter of the records of workers (``braid.engine.processes.log_lines``).

    Operators read models by their names, and one line for each cause.
    """

    _names_of: Callable[[str], str]  # models whose file has a digest, in one text; "": none
    _causes: OrderedDict[tuple[str, str], Seldom] = field(default_factory=OrderedDict)

    def __call__(self, record: logging.LogRecord) -> bool:
        """Name the model of a record; returns True if the record is to be logged."""
        digest = vars(record).pop("digest", None)
        model = "" if digest is None else self._names_of(digest) or str(digest)[:12]
        if model:
            record.model = model
        if record.levelno > logging.WARNING:
            return True
        cause = record.getMessage() + str(vars(record).get("text", "")), model
        seldom = self._causes.setdefault(cause, Seldom(AGAIN_SECONDS))
        self._causes.move_to_end(cause)
        if len(self._causes) > MAX_CAUSES:
            self._causes.popitem(last=False)
        return seldom.passes() is not None
