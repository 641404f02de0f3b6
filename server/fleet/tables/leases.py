"""Leases in the database. Every function runs inside the caller's transaction.

Time is the database's. A row stays when its lease ends, so that a fence never means another owner
later; those of jobs that are forgotten go with them.

Locks: a fenced write holds its row FOR KEY SHARE to its commit, which lets beats renew the lease
and makes others wait who want to take it over. They do not wait: they look again later.
"""

from collections.abc import Collection
from time import monotonic

from sqlalchemy import ColumnElement, Connection, Update, delete, or_, select, tuple_, update

from braid.core.errors import TakenOver
from braid.server.fleet.records import JOB, Claimant, Lease
from braid.server.store.tables.dialects import insert_into, now
from braid.server.store.tables.schema import jobs, leases

RELEASED = 0.0
"""End of a lease that its node gave back: no need to wait whether it comes back."""


def acquire(
    connection: Connection, claimant: Claimant, name: str, takes_expired: bool = True
) -> Lease | None:
    """Take a lease that no node has, with a fence above all before; None: one has it.

    Without ``takes_expired`` only one that was released, or never given.
    """
    asked_at = monotonic()
    row = {"node": claimant.node, "expires_at": now(connection) + claimant.seconds}
    new = insert_into(connection, leases).values(name=name, fence=1, **row).on_conflict_do_nothing()
    if connection.scalar(new.returning(leases.c.fence)) is not None:
        return Lease(name, 1, asked_at)
    free = (
        select(leases.c.fence)
        .where(leases.c.name == name, has_expired(connection) if takes_expired else is_released())
        .with_for_update(skip_locked=True)
    )
    fence = connection.scalar(free)
    if fence is None:
        return None
    connection.execute(update(leases).where(leases.c.name == name).values(fence=fence + 1, **row))
    return Lease(name, fence + 1, asked_at)


def renew(connection: Connection, held: Collection[Lease], claimant: Claimant) -> set[Lease]:
    """Make leases last again, also those over their time that no other took; returns these.

    One that was given back just now stays so.
    """
    if not held:
        return set()
    mine = tuple_(leases.c.name, leases.c.fence).in_([(lease.name, lease.fence) for lease in held])
    renewed = connection.execute(
        update(leases)
        .where(mine, leases.c.expires_at != RELEASED)
        .values(expires_at=now(connection) + claimant.seconds)
        .returning(leases.c.name, leases.c.fence)
    )
    return {Lease(row.name, row.fence) for row in renewed}


def check(connection: Connection, lease: Lease) -> None:
    """Make sure, until the transaction ends, that no other node has taken a lease over.

    Raises TakenOver: one has.
    """
    row = select(leases.c.fence).where(leases.c.name == lease.name, leases.c.fence == lease.fence)
    if connection.scalar(row.with_for_update(read=True, key_share=True)) is None:
        raise TakenOver(f"another node works on {lease.name} now; what was written is refused")


def release(connection: Connection, *held: Lease) -> None:
    """Let other nodes have leases now, unless they have them already."""
    for lease in held:
        connection.execute(_of(lease).values(expires_at=RELEASED))


def end(connection: Connection, lease: Lease) -> None:
    """End the lease of a job that has ended; its row keeps when that was."""
    connection.execute(_of(lease).values(expires_at=now(connection)))


def _of(lease: Lease) -> Update:
    this = leases.c.name == lease.name, leases.c.fence == lease.fence
    return update(leases).where(*this)


def is_released() -> ColumnElement[bool]:
    """Condition that a lease was given back, or in an outer join, never given."""
    return or_(leases.c.name.is_(None), leases.c.expires_at == RELEASED)


def has_expired(connection: Connection) -> ColumnElement[bool]:
    """Condition that a lease is over: it was given back, or not renewed in time."""
    return or_(leases.c.name.is_(None), leases.c.expires_at < now(connection))


def forget_jobs(connection: Connection) -> None:
    names = select(JOB + jobs.c.id)
    connection.execute(
        delete(leases)
        .where(leases.c.name.startswith(JOB, autoescape=True), leases.c.name.not_in(names))
        .where(leases.c.expires_at < now(connection))
    )
