"""What the front end is told when something fails."""

from __future__ import annotations

from braid.core.errors import BraidError, InvalidRequest, WorkerFault
from braid.engine.device import Backend
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import WorkerCall, WorkerFailure


def as_braid_error(error: Exception, backend: Backend) -> BraidError:
    """Return a BraidError as it is, and an error of a library as the BraidError that it means."""
    if isinstance(error, BraidError):
        return error
    if (known := backend.fault(error)) is not None:
        return known
    text = str(error)
    if isinstance(error, IndexError) or "out of range" in text or "out of bounds" in text:
        return InvalidRequest(
            "the model could not run on these values: an index in an input is out of range"
        )
    return WorkerFault(f"the device worker failed: {type(error).__name__}")


def refuse(channel: BlockingChannel, error: BraidError) -> None:
    """Answer the first calls with the error that kept the device from opening."""
    for message in channel.receive() or ():
        if isinstance(message, WorkerCall):
            channel.send(WorkerFailure.of(message.number, error))
