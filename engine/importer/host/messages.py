"""Messages of the importer process to the server: one JSON object a line.

    {"progress": 0.4, "step": "checking against ONNX Runtime"}      any number of times
    {"failed": "unsupported", "message": "...", "reasons": [...]}   or
    {"failed": "disk", "trouble": "FULL"}                           or
    {"done": true}                                                  once, as the last line

The importer has handled an untrusted file, so the server believes nothing it says: sizes are
bounded, types checked, text stripped of control characters, and an answer outside this
vocabulary is a failed import.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from braid.core.errors import (
    DiskFailure,
    DiskTrouble,
    ImportLimitExceeded,
    ModelImportError,
    UnsupportedOperators,
)
from braid.engine.importer.host.request import SETTINGS

MAX_LINE_BYTES = 256 << 10
MAX_REPORT_BYTES = 4 << 20
MAX_MESSAGE_CHARS = 4000
MAX_REASONS = 200
MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an import: the fraction done, in [0, 1], and the present step."""

    fraction: float
    step: str


@dataclass(frozen=True, slots=True)
class Failed:
    """End of a failed import, with its error."""

    error: ModelImportError | DiskFailure


@dataclass(frozen=True, slots=True)
class Done:
    """End of a successful import: the artefact is written."""


Message = Progress | Failed | Done
OnProgress = Callable[[float, str], None]  # told a fraction in [0, 1] and the present step


class MalformedMessage(ValueError):
    """A line is not one of the messages above."""


def encode(message: Message) -> bytes:
    """One line of JSON, newline included."""
    body: dict[str, Any]
    match message:
        case Progress(fraction, step):
            body = {"progress": fraction, "step": step[:MAX_MESSAGE_CHARS]}
        case Failed(UnsupportedOperators() as error):
            body = {"failed": "unsupported", "reasons": _shorten(error.reasons)}
        case Failed(DiskFailure() as error):
            body = {"failed": "disk", "trouble": error.trouble.name}
        case Failed(error):
            body = {"failed": "model", "message": str(error)[:MAX_MESSAGE_CHARS]}
            if isinstance(error, ImportLimitExceeded):
                body |= {"failed": "limit", "limit": error.limit}
        case Done():
            body = {"done": True}
    return json.dumps(body).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read one line; ``MalformedMessage`` if it is too long, not JSON, or no message."""
    if len(line) > MAX_LINE_BYTES:
        raise MalformedMessage(f"a line of {len(line)} bytes")
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage("not JSON") from error
    match body:
        case {"progress": int() | float() as fraction, "step": str() as step}:
            if not 0 <= fraction <= 1:
                raise MalformedMessage(f"progress {fraction!r}")
            return Progress(float(fraction), _printable(step))
        case {"failed": str() as kind}:
            return Failed(_error(kind, body))
        case {"done": True}:
            return Done()
        case _:
            raise MalformedMessage("neither progress, failed nor done")


def _error(kind: str, body: Mapping[str, Any]) -> ModelImportError | DiskFailure:
    reasons, message = body.get("reasons"), body.get("message")
    if kind == "disk" and body.get("trouble") in DiskTrouble.__members__:
        return DiskFailure(DiskTrouble[body["trouble"]], "the importer")
    if kind == "unsupported" and isinstance(reasons, list) and reasons:
        if len(reasons) > MAX_REASONS + 1 or not all(isinstance(r, str) for r in reasons):
            raise MalformedMessage("reasons must be a short list of text")
        return UnsupportedOperators(tuple(_printable(reason) for reason in reasons))
    if kind in ("model", "limit") and isinstance(message, str):
        if kind == "limit":
            limit = body.get("limit")
            return ImportLimitExceeded(_printable(message), limit if limit in SETTINGS else "")
        return ModelImportError(_printable(message))
    raise MalformedMessage(f"failure of kind {kind!r}")


def _shorten(reasons: tuple[str, ...]) -> list[str]:
    kept = [reason[:MAX_REASON_CHARS] for reason in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        kept.append(f"and {len(reasons) - MAX_REASONS} more")
    return kept


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:MAX_MESSAGE_CHARS])
