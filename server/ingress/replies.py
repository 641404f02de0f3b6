"""Memory of replies on their way to an ingress: written once, right from a batch's slot.

    write ──> placed for a call ──handed over──> free when the ingress has copied it
                     └── the call ended otherwise ──> dropped

A reply is built before its call has ended, and the call may end otherwise in between, or the
batch be run again: so each call has one place at most, which goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import DeviceOutOfMemory
from engine.worker.arena import Arena
from server.servicers.protowire import Join, Part, joined


@dataclass(frozen=True, slots=True)
class Placed:
    """A reply in shared memory."""

    offset: int
    size_bytes: int


class ReplyMemory:
    """Of one ingress. Belongs to the event loop."""

    def __init__(self, memory_bytes: int) -> None:
        self.arena = Arena(memory_bytes)
        self._placed: dict[int, Placed] = {}  # by call, not handed over yet
        self._is_gone = False

    def join_for(self, call: int) -> Join:
        """What writes the reply of a call: into shared memory, or as bytes while that is full."""

        def join(parts: Sequence[Part]) -> Placed | bytes:
            self.drop(call)
            if self._is_gone:
                return b""  # nobody waits
            try:
                return self.place(call, parts) or joined(parts)
            except DeviceOutOfMemory:
                return joined(parts)  # it will not do later, either: ``place`` says so then

        return join

    def place(self, call: int, parts: Sequence[Part]) -> Placed | None:
        """Write the reply of a call; None while there is no room.

        Raises:
            DeviceOutOfMemory: it is larger than the memory.
        """
        size = sum(map(len, parts))
        offset = self.arena.allocate(size)
        if offset is None:
            return None
        view, at = self.arena.view, offset
        for part in parts:
            view[at : at + len(part)] = part
            at += len(part)
        placed = self._placed[call] = Placed(offset, size)
        return placed

    def hand_over(self, call: int) -> None:
        """The reply of a call is the ingress's now, until it says that it was copied."""
        del self._placed[call]

    def drop(self, call: int) -> None:
        """Forget what was placed for a call, if anything was."""
        placed = self._placed.pop(call, None)
        if placed is not None:
            self.arena.release(placed.offset)

    def abandon(self) -> None:
        """The ingress is gone."""
        self._is_gone = True
        self._placed.clear()
        self.arena.abandon()
