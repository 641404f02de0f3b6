"""Threads for calls that may never return, such as reads of another machine's disk.

``asyncio.to_thread`` has few threads for everything, which such calls would take away for good.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OwnThreads:
    """Threads of one part of a server. Belongs to one event loop."""

    def __init__(self, name: str, at_once: int) -> None:
        """Start none yet; ``at_once`` calls go on at the same time, others wait."""
        self._name = name
        self._places = asyncio.Semaphore(at_once)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a blocking call returns, or raise what it raises.

        A cancelled caller leaves at once; its thread keeps its place until the call returns.
        """
        loop = asyncio.get_running_loop()
        await self._places.acquire()
        done: asyncio.Future[T] = loop.create_future()

        def end(result: T | None, error: BaseException | None) -> None:
            self._places.release()
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = call(*args, **kwargs)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, result, error)

        try:
            threading.Thread(target=work, name=self._name, daemon=True).start()
        except BaseException:
            self._places.release()
            raise
        return await done
