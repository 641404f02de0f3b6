"""Room in memory for models that are to be loaded."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from braid.server.store.records import ModelVersion


class Room(Protocol):
    """Memory that models share, and the order in which they want it."""

    def room_for(self, model: ModelVersion) -> AbstractAsyncContextManager[None]:
        """Make room for a version, which is loaded inside the block."""

    async def more(self, model: ModelVersion) -> bool:
        """Make more room, as that was not enough; False: nothing else can leave."""

    def has_room(self, model: ModelVersion) -> bool:
        """Whether a version fits beside the others."""

    def is_wanted(self, model: ModelVersion) -> bool:
        """Whether a restart loads a version before a request names it."""

    def place_in_order(self, model: ModelVersion) -> int:
        """Place in which a restart loads a version; those of one place by their size."""


class AllRoom:
    """As much memory as there is."""

    def room_for(self, model: ModelVersion) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def more(self, model: ModelVersion) -> bool:
        return False

    def has_room(self, model: ModelVersion) -> bool:
        return True

    def is_wanted(self, model: ModelVersion) -> bool:
        return True

    def place_in_order(self, model: ModelVersion) -> int:
        return 0
