"""Executables of plans that served in another state of the device, until that is back.

    state changes ──> keep(plan of before), take(plan of now) or prepare it

What they hold beside the model's weights is bounded with all else that is prepared beside the plans
in force (``braid.core.shape_memory``): what is dropped is prepared again at the next change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from braid.core.program import PlanToRun
from braid.core.shape_memory import ShapeMemory
from braid.server.devices.executables import Executable


class SparePlans:
    """Executables of one replica, by their numbers. Belongs to the event loop."""

    def __init__(
        self, memory: ShapeMemory, retire: Callable[[Executable], Coroutine[Any, Any, None]]
    ) -> None:
        """Keep nothing yet; ``retire`` releases one when no batch uses it any more."""
        self._memory = memory
        self._retire = retire
        self._kept: dict[int, Executable] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def size_bytes(self) -> int:
        """Memory that they hold, about."""
        return sum(ready.size_bytes for ready in self._kept.values())

    def keep(self, ready: Executable) -> None:
        self._kept[ready.number] = ready
        self._memory.keep(self, ready.number, ready.size_bytes)

    def take(self, to_run: PlanToRun) -> Executable | None:
        """Return the executable of a plan, which is in force from now on; None: there is none."""
        for ready in self._kept.values():
            if ready.to_run == to_run:
                self._memory.forget(self, ready.number)
                return self._kept.pop(ready.number)
        return None

    def drop(self, number: int) -> None:
        """Release an executable, as its memory is needed."""
        releasing = asyncio.create_task(self._retire(self._kept.pop(number)))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)

    async def close(self) -> list[Executable]:
        """Return all executables."""
        await asyncio.gather(*self._releasing, return_exceptions=True)
        self._memory.forget_all(self)
        return list(self._kept.values())
