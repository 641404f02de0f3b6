"""Callers that leave while their answer is being written: no error, and no traceback in the log.

gRPC notices twice that a caller has left: its write fails, and the handler is cancelled. If the
failure comes first, gRPC raises ``ExecuteBatchError``: in ``context.write``, where
``braid.server.rpc.guarding`` ends the handler, or while it sends the single answer that a handler
has returned, where the error reaches gRPC's own log only.
"""

from __future__ import annotations

import logging

import grpc

GRPC_LOG = "grpc._cython.cygrpc"

_BATCH_FAILED = 'Failed "execute_batch"'
"""Beginning of the message if operations failed; errors of misuse begin otherwise."""


def has_left(error: BaseException | None) -> bool:
    """Bool: gRPC could not write an answer, as its caller has left."""
    return isinstance(error, grpc.aio.InternalError) and str(error).startswith(_BATCH_FAILED)


class _Departures(logging.Filter):
    """Filter that turns gRPC's error about a caller that has left into a line for debugging."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; returns bool: log it."""
        if record.exc_info is None or not has_left(record.exc_info[1]):
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = "the caller left before its answer was sent", ()
        record.exc_info = record.exc_text = None
        return logging.getLogger(GRPC_LOG).isEnabledFor(logging.DEBUG)


_DEPARTURES = _Departures()


def filter_grpc_log() -> None:
    """Filter gRPC's log for callers that have left. May be called twice."""
    logging.getLogger(GRPC_LOG).addFilter(_DEPARTURES)
