"""Errors as frames carry them: the class by its name, the message, and when to try again.

    process ──error_body──> frame ──error_from──> other process: an error of the same class

Loads no torch.
"""

from __future__ import annotations

from typing import Any

from braid.core import errors
from braid.core.errors import BraidError, ResourceExhausted, WorkerFault


def error_body(error: BraidError) -> dict[str, Any]:
    """An error as a message carries it."""
    body: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ResourceExhausted) and error.retry_after_s is not None:
        body["retry_after_s"] = error.retry_after_s
    return body


def error_from(body: dict[str, Any]) -> BraidError:
    """The other process's error as an exception of the same class."""
    kind = getattr(errors, body["type"], WorkerFault)
    if not (isinstance(kind, type) and issubclass(kind, BraidError)):
        kind = WorkerFault
    revived = BraidError.__new__(kind)
    Exception.__init__(revived, body["message"])
    if isinstance(revived, ResourceExhausted):
        revived.retry_after_s = body.get("retry_after_s")
    return revived
