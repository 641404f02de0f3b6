"""Leases that this node holds: work is told when one lapses, is renewed, or is another node's.

    hold ──> held ──beat──> held ...
              │ └──not renewed within its time──> lapsed ──beat──> renewed
              └──another node's──> lost <────────────┘

A beat renews them and the row of this node, in a thread and on a connection of its own: a slow call
of the store costs no lease. One that fails is tried again soon, until the leases lapse and after
that, too: a lease that no other node took is renewed, with the same fence.

Time is counted from before the database was asked, by a clock that nobody sets: a lease lapses
here no later than it does there, whatever the clocks of node and database say. What a node writes
is refused by the fence all the same (``FleetStore.fenced``).
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from braid.core.errors import BraidError, ResourceExhausted, Unavailable
from braid.core.keyed_locks import KeyedLocks
from braid.server.fleet.metrics import NodeMetrics
from braid.server.fleet.records import Claimant, Lease
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables import leases as leases_table
from braid.server.fleet.tables import nodes as nodes_table
from braid.server.jobs.registry import Work
from braid.server.store.database.opening import beat_engine
from braid.server.store.records import NodeRecord

log = logging.getLogger("braid.fleet")

CHANGED_SECONDS = 1.0
"""Time after which what other nodes stored is looked at, though no notification came."""

BEATS_A_LEASE = 3.0
AGAIN_SECONDS = 0.5
"""Pause after a beat that failed."""

LOOKS_A_LEASE = 20.0
"""Looks for lapsed leases within the time of one."""

SLOW = 0.3
"""Part of a lease that an answer may take; after longer the database counts as having been away."""

LEAVE_SECONDS = 5.0
"""Time that a beat under way may take at the end."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat that the database answered."""

    began: float  # monotonic clock, before the database was asked
    renewed: frozenset[Lease]
    alive: int  # nodes


@dataclass(slots=True)
class _Held:
    """A lease that this node holds."""

    lease: Lease
    work: Work | None
    until: float  # monotonic clock
    has_lapsed: bool = False  # and the work was paused


class Leases:
    """Leases of this node. Belongs to the event loop, but for the beat's part."""

    def __init__(self, store: FleetStore, lease_seconds: float, metrics: NodeMetrics) -> None:
        self.seconds = lease_seconds
        self.metrics = metrics
        self._store = store
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()  # of ``_held``: the beat reads it, and sets ``until``
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_away = True  # no beat was answered since the last that failed
        self._settled_at = float("inf")  # by the monotonic clock
        self._node: NodeRecord | None = None
        self._ending = threading.Event()  # of the beats
        self._thread: threading.Thread | None = None
        self._lapses: asyncio.Task[None] | None = None
        self._notified = asyncio.Event()  # set, and replaced, at each notification
        self._turns = KeyedLocks()  # by name: this node asks for a lease once at a time

    async def start(self, node: NodeRecord) -> None:
        """Become one of the nodes, and begin to beat. Unavailable: the database is away."""
        self._loop = asyncio.get_running_loop()
        await self._store.call(self._store.join, node, self.seconds)
        self._node = node
        given = beat_engine(self._store.database), node
        beating = threading.Thread(target=self._beat, args=given, name="braid-beat", daemon=True)
        beating.start()
        self._thread = beating
        self._lapses = asyncio.create_task(self._watch_lapses(), name="lease-lapses")

    async def stop(self) -> None:
        """Let other nodes have what this one worked on, now; its jobs are stopped before."""
        await self.fall_silent()
        if self._node is not None:
            with suppress(BraidError):  # then they wait until the leases are over
                await self._store.call(self._store.leave, self._node.id, self._to_renew())

    async def fall_silent(self) -> None:
        """Beat no more; other nodes take over what this one has once that is over."""
        if self._lapses is not None and self._thread is not None:
            self._lapses.cancel()
            await asyncio.gather(self._lapses, return_exceptions=True)
            self._ending.set()
            await asyncio.to_thread(self._thread.join, LEAVE_SECONDS)

    def hold(self, lease: Lease, work: Work | None = None) -> None:
        """Renew a lease from now on; ``work`` is told how it fares."""
        with self._lock:
            self._held[lease.name] = _Held(lease, work, lease.asked_at + self.seconds)
        self.metrics.held.set(len(self._held))

    def drop(self, lease: Lease, *, was_refused: bool = False) -> None:
        """Renew a lease no more: its work has ended, or a write under it was refused."""
        with self._lock:
            held = self._held.get(lease.name)
            if held is not None and held.lease == lease:
                del self._held[lease.name]
        if was_refused:
            self.metrics.refused.inc()
        self.metrics.held.set(len(self._held))

    @asynccontextmanager
    async def owning(self, name: str, waiting: Callable[[], None]) -> AsyncIterator[Lease]:
        """Have a lease while the context is open; ``waiting`` is told while another node does."""
        async with self._turns.of(name):
            while (lease := await self.acquire(name)) is None:
                waiting()
                await self.changed()
            self.hold(lease)
            try:
                yield lease
            finally:
                self.drop(lease)
                await self.release(lease)

    async def acquire(self, name: str) -> Lease | None:
        """Return a lease that no other node has; it is renewed only from ``hold`` on.

        None also before ``start``, when this is no node yet.
        """
        if self._node is None:
            return None
        try:
            return await self._store.call(self._store.acquire, name, self.takes_expired)
        except (Unavailable, ResourceExhausted):  # the job that asks is stopped if that lasts
            return None

    async def release(self, lease: Lease) -> None:
        """Let other nodes have a lease now, or once it is over if the database takes no writes."""
        with suppress(BraidError):
            await self._store.call(self._store.release, lease)

    async def changed(self) -> None:
        """Wait until what other nodes stored may have changed, a second at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(CHANGED_SECONDS, self.seconds)):
                await self._notified.wait()

    @property
    def takes_expired(self) -> bool:
        """True if what other nodes did not renew may be taken: they have had the time to.

        After the database was away, it has answered for the time of a lease again; meanwhile its
        owners renew what they have.
        """
        return not self._is_away and monotonic() >= self._settled_at

    def notified(self) -> None:
        """Wake what waits for changes of other nodes: a notification has come."""
        self._notified.set()
        self._notified = asyncio.Event()

    # Beats, in their thread.

    def _to_renew(self) -> Collection[Lease]:
        with self._lock:
            return tuple(held.lease for held in self._held.values())

    def _beat(self, engine: Engine, node: NodeRecord) -> None:
        """Beat until the end, which closes the engine."""
        claimant, was_away, pause_s = Claimant(node.id, self.seconds), False, 0.0
        while not self._ending.wait(pause_s):
            held, pause_s = self._to_renew(), self.seconds / BEATS_A_LEASE
            try:
                beat = _renewed(engine, node, held, claimant)
            except Exception as error:
                if not isinstance(error, SQLAlchemyError):
                    log.exception("leases are not renewed")
                elif not was_away:
                    reason = str(error).split("\n", 1)[0][:200]
                    facts = {"reason": reason, "held": len(held)}
                    log.warning("leases are not renewed", extra=facts)
                was_away = self._is_away = True
                pause_s = min(AGAIN_SECONDS, pause_s)
            else:
                if was_away:
                    log.info("leases are renewed again", extra={"held": len(beat.renewed)})
                was_away = False
                self._beaten(held, beat)
        engine.dispose()

    def _beaten(self, leases: Collection[Lease], beat: Beat) -> None:
        answered_at, is_first = monotonic(), self._settled_at == float("inf")
        if is_first:
            self._settled_at = answered_at + self.seconds / BEATS_A_LEASE
        elif self._is_away or answered_at > beat.began + SLOW * self.seconds:
            self._settled_at = answered_at + self.seconds
        self._is_away = False
        with self._lock:
            for lease in beat.renewed:
                held = self._held.get(lease.name)
                if held is not None and held.lease == lease:
                    held.until = beat.began + self.seconds
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._tell, leases, beat)

    # In the event loop again.

    def _tell(self, leases: Collection[Lease], beat: Beat) -> None:
        """Resume work whose lease had lapsed and is renewed; end work whose lease is lost."""
        self.metrics.alive.set(beat.alive)
        for lease in leases:
            held = self._held.get(lease.name)
            if held is None or held.lease != lease:
                continue
            if lease in beat.renewed:
                if held.has_lapsed:
                    held.has_lapsed = False
                    if held.work is not None:
                        held.work.resumed()
            else:
                log.warning("lease lost to another node", extra={"lease": lease.name})
                self.metrics.lost.inc()
                self.drop(lease)
                if held.work is not None:
                    held.work.lost()

    async def _watch_lapses(self) -> None:
        while True:
            now = monotonic()
            with self._lock:
                lapsed = [
                    held for held in self._held.values() if held.until < now and not held.has_lapsed
                ]
            for held in lapsed:
                held.has_lapsed = True
                if held.work is not None:
                    held.work.paused()
            await asyncio.sleep(self.seconds / LOOKS_A_LEASE)


def _renewed(engine: Engine, node: NodeRecord, held: Collection[Lease], claimant: Claimant) -> Beat:
    began = monotonic()
    with engine.begin() as connection:
        renewed = leases_table.renew(connection, held, claimant)
        nodes_table.beat(connection, node)
        alive = nodes_table.alive(connection, claimant.seconds)
        return Beat(began, frozenset(renewed), alive)
