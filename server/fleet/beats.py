"""The beat of this node: one thread and one connection that renew its leases and its row.

A slow call of the store costs no lease: the beat waits for nothing else. A beat that fails is
tried again soon, until the leases lapse and after that, too: a lease that no other node took is
renewed, with the same fence.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from braid.server.fleet.records import Claimant, Lease
from braid.server.fleet.tables import leases as leases_table
from braid.server.fleet.tables import nodes as nodes_table
from braid.server.store.records import NodeRecord

log = logging.getLogger("braid.fleet")

BEATS_A_LEASE = 3.0
AGAIN_SECONDS = 0.5
"""Pause after a beat that failed."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat that the database answered."""

    began: float  # monotonic clock, before the database was asked
    renewed: frozenset[Lease]
    alive: int  # nodes


class BeatThread:
    """Thread that beats while it runs, on a connection of its own."""

    def __init__(
        self,
        engine: Engine,
        node: NodeRecord,
        lease_seconds: float,
        held: Callable[[], Collection[Lease]],
        beaten: Callable[[Collection[Lease], Beat], None],
        unanswered: Callable[[], None],
    ) -> None:
        """Connect to nothing yet; the engine is closed with the thread, which makes all calls.

        Args:
            held: leases to renew.
            beaten: told of each beat, with the leases that it was to renew.
            unanswered: told of each beat that failed.
        """
        self._engine = engine
        self._node = node
        self._claimant = Claimant(node.id, lease_seconds)
        self._held = held
        self._beaten = beaten
        self._unanswered = unanswered
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="braid-beat", daemon=True)
        self._is_away = False

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Beat no more; wait so long at most for a beat under way, which then ends by itself."""
        self._ending.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._ending.wait(pause_s):
            pause_s = self._claimant.seconds / BEATS_A_LEASE
            if not self._try_to_beat():
                self._unanswered()
                pause_s = min(AGAIN_SECONDS, pause_s)
        self._engine.dispose()

    def _try_to_beat(self) -> bool:
        held = self._held()
        try:
            beat = self._beat(held)
        except Exception as error:
            if not isinstance(error, SQLAlchemyError):
                log.exception("leases are not renewed")
            elif not self._is_away:
                reason = str(error).split("\n", 1)[0][:200]
                log.warning("leases are not renewed", extra={"reason": reason, "held": len(held)})
            self._is_away = True
            return False
        if self._is_away:
            log.info("leases are renewed again", extra={"held": len(beat.renewed)})
        self._is_away = False
        self._beaten(held, beat)
        return True

    def _beat(self, held: Collection[Lease]) -> Beat:
        began = monotonic()
        with self._engine.begin() as connection:
            renewed = leases_table.renew(connection, held, self._claimant)
            nodes_table.beat(connection, self._node)
            alive = nodes_table.alive(connection, self._claimant.seconds)
            return Beat(began, frozenset(renewed), alive)
