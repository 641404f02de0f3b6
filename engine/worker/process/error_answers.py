"""What the front end is told when something fails."""

from __future__ import annotations

from braid.core.errors import BraidError, InvalidRequest, WorkerFault
from braid.engine.device import Backend
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import WorkerCall, WorkerFailure


def as_braid_error(error: Exception, backend: Backend) -> BraidError:
    """Our own errors as they are, those of libraries by what they mean."""
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
    """Answer the first calls with why there is no device, instead of serving."""
    for message in channel.receive() or ():
        if isinstance(message, WorkerCall):
            channel.send(WorkerFailure.of(message.number, error))
