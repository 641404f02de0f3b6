"""Present state of a device's cores, asked of its worker every few seconds.

The worker looks between two runs, in a fraction of a millisecond on a few cores, and in pieces on
many. What it takes is bounded: a thousandth of the time of one core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from braid.core.background import BackgroundTasks
from braid.core.device_state import UNKNOWN, DeviceState
from braid.core.errors import BraidError
from braid.engine.link.messages import DescribeDevice, DeviceDescription
from braid.engine.link.supervisor import WorkerLink

log = logging.getLogger("braid.device")

LEAST_PAUSE_S = 2.0
"""Seconds from one look to the next, at least."""

CORES_AT_ONCE = 2
"""Cores that a look keeps busy."""

PART = 0.001
"""Part of one core's time that looks may take."""


class StateWatch:
    """Follows the state of one device. Belongs to the event loop."""

    def __init__(
        self, link: WorkerLink, changed: Callable[[], None], least_pause_s: float = LEAST_PAUSE_S
    ) -> None:
        """Ask for nothing yet; ``changed`` is called when the state has another name."""
        self._link = link
        self._changed = changed
        self._least_pause_s = least_pause_s
        self._background = BackgroundTasks(f"state of {link.name}")
        self.state = UNKNOWN
        """As it was told last; empty: it is not known."""

    def start(self) -> None:
        """Begin with the state in the worker's first description, then go on asking.

        Of a GPU there is nothing to ask: no host moves its parts.
        """
        described = self._link.device
        if described is not None and self._link.options.gpu is None:
            self.state = described.state
            self._background.start(self._follow(described))

    async def close(self) -> None:
        self._background.cancel()
        await self._background.ended()

    async def _follow(self, described: DeviceDescription) -> None:
        while True:
            busy_s = CORES_AT_ONCE * described.look_s
            await asyncio.sleep(max(self._least_pause_s, busy_s / PART))
            with suppress(BraidError):  # the worker is restarting
                described = await self._link.call(DescribeDevice())
                self._note(described.state)

    def _note(self, state: DeviceState) -> None:
        if not state.name:  # of a new worker that could not tell yet
            return
        before, self.state = self.state, state
        if state.name != before.name:
            facts = {"device": self._link.name, "was": str(before), "now": str(state)}
            log.info("the distance between cores has changed", extra=facts)
            self._changed()
