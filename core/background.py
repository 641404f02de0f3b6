"""Background tasks: their errors are logged; some end at an event, some outlive their callers."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from braid.core.errors import BraidError

log = logging.getLogger("braid.background")

T = TypeVar("T")


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the error that ended a task; to be added to the task as a done callback."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, BraidError):
        log.error("%s ended: %s", task.get_name(), error)
    else:
        log.error("%s died", task.get_name(), exc_info=error)


def log_unexpected(task: asyncio.Task[Any]) -> None:
    """Log the error that ended a task unless it is a BraidError, of which its callers are told.

    To be added as a done callback to a task whose callers may all have left when it ends.
    """
    if not task.cancelled() and not isinstance(task.exception(), BraidError):
        log_failure(task)


class BackgroundTasks:
    """Tasks beside the requests, kept until they end; their errors are logged."""

    def __init__(self, name: str | None = None) -> None:
        """Start nothing yet; ``name`` is that of each task in the log."""
        self._name = name
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it ends or ``cancel`` is called."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(log_failure)

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()

    async def ended(self) -> None:
        """Wait until all tasks that run now have ended, failed or not."""
        await asyncio.gather(*self._running, return_exceptions=True)


async def ends_before(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work``, cancelled when the event is set; return whether it came to its end."""
    task = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.wait((task, waiting))
    if task.cancelled():
        return False
    task.result()
    return True


async def though_callers_leave(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does; it goes on to its end if the caller is cancelled before."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(log_unexpected)
        raise


async def to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Run ``work`` to its end even if cancelled; raise the cancellation after that."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(task)
        raise
