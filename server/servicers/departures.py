"""Callers that leave while their answer is being written: no fault, and no traceback in the log.

gRPC learns twice that a caller has left: what it is writing fails, and the handler is cancelled. If
the failure comes first, it raises ``ExecuteBatchError``: in ``context.write``, where
``server.servicers.guarding`` ends the handler, and behind a single answer that a handler has
returned, where nobody but gRPC's own log can be told.
"""

from __future__ import annotations

import logging

import grpc

GRPC_LOG = "grpc._cython.cygrpc"

_BATCH_FAILED = 'Failed "execute_batch"'
"""How it begins if operations ended without success; misuse of gRPC begins otherwise."""


def has_left(error: BaseException | None) -> bool:
    """Whether an error says that an answer could not be written: nobody is there."""
    return isinstance(error, grpc.aio.InternalError) and str(error).startswith(_BATCH_FAILED)


class _Departures(logging.Filter):
    """Makes a line for debugging of what gRPC logs as an error about a caller that has left."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; returns whether it is logged still."""
        if record.exc_info is None or not has_left(record.exc_info[1]):
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = "the caller left before its answer was sent", ()
        record.exc_info = record.exc_text = None
        return logging.getLogger(GRPC_LOG).isEnabledFor(logging.DEBUG)


_DEPARTURES = _Departures()


def expect_departures() -> None:
    """Let gRPC's log know them. May be called twice."""
    logging.getLogger(GRPC_LOG).addFilter(_DEPARTURES)
