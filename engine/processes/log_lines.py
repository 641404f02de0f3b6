"""Logs of a child process as records of this one.

    child: logging ──log_as_lines──> one line of JSON each ──relay──> logging here

What a library or a crash prints becomes records, too, one for each line, so that nothing a child
prints leaves the form that this process logs in.
"""

import asyncio
import json
import logging
import sys
from typing import Any

LOGGER = "braid.worker"  # filters on it see all records of children

LONGEST_BYTES = 64 << 10  # of a line; what is longer is logged in parts

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class LineFormatter(logging.Formatter):
    """Formatter of one JSON object a line, read by ``relay``."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "logger": record.name,
                "level": record.levelno,
                "message": record.getMessage(),
                "trace": self.formatException(record.exc_info) if record.exc_info else "",
                "facts": {k: v for k, v in vars(record).items() if k not in _STANDARD},
            },
            default=str,
        )


def log_as_lines() -> None:
    """Log warnings and worse to stderr, for ``relay`` in the parent. Called once, by a child."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)


async def relay(output: asyncio.StreamReader, pid: int) -> None:
    """Log what a child prints until it has closed its output."""
    begun = b""
    while chunk := await output.read(LONGEST_BYTES):
        *lines, begun = (begun + chunk).split(b"\n")
        if len(begun) > LONGEST_BYTES:
            lines, begun = [*lines, begun], b""
        for line in lines:
            _log(line, pid)
    _log(begun, pid)


def _log(line: bytes, pid: int) -> None:
    text = line.decode(errors="replace").strip()
    if not text:
        return
    log = logging.getLogger(LOGGER)
    printed = {**_record(LOGGER, logging.WARNING, "a worker printed"), "text": text}
    record = logging.makeLogRecord({"worker": pid, **(_fields(text) or printed)})
    if log.isEnabledFor(record.levelno):
        log.handle(record)


def _fields(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
        name, level, message = record["logger"], record["level"], record["message"]
        facts = {k: v for k, v in record["facts"].items() if k not in _STANDARD}
        trace = record["trace"] or None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    if not (isinstance(message, str) and type(level) is int and str(name).startswith("braid.")):
        return None
    return {**facts, **_record(name, level, message), "exc_text": trace and str(trace)}


def _record(name: str, level: int, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "msg": message,
    }
