"""Objects of the shared files. Every function runs inside the caller's transaction.

    begin ──> PENDING ──finish──> PRESENT <──mark──> DAMAGED
                 └──────condemn──────┴───────────────────┴──> DELETING ──forget──> no row

Only an object whose row says so is deleted, never one without a row: the database may be new, the
wrong one, or restored from an older backup.

The key of an object is ``KIND/DIGEST.RANDOM``: it is put once and deleted once, never put again. So
a server that slept may finish its put or its deletion at any time: it meets no other object.

What is needed is a *name*, ``KIND/DIGEST``, by the row of a model or a job; any PRESENT object of
the name will do. Whoever stores such a row touches the object in the same transaction (``hold``); a
sweep condemns only what no row needs and no server has touched for the grace time.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    delete,
    insert,
    select,
    update,
)

from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables.dialects import now
from braid.server.store.tables.schema import objects

OWNER = "owner"
"""Key of the row that holds the identity of the database, which a shared place is marked with."""

_AT_ONCE = 500  # keys in one statement


class ObjectState(enum.Enum):
    """State of an object. Values are those of the database."""

    PENDING = "PENDING"  # being put, or cut off in that
    PRESENT = "PRESENT"  # put whole
    DAMAGED = "DAMAGED"  # a server found it missing, or other than it was put
    DELETING = "DELETING"  # of no use to anyone; deleted, or about to be
    OWNER = "OWNER"  # no object: the identity of the database


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object: what it holds, and where."""

    key: str  # KIND/DIGEST.RANDOM
    sha256: str  # of its bytes
    size_bytes: int
    state: ObjectState = ObjectState.PENDING

    @property
    def name(self) -> str:
        """``KIND/DIGEST``, which it is found by."""
        return name_of(self.key)


def name_of(key: str) -> str:
    """Return the name of a key: all but its random part."""
    return key.rpartition(".")[0]


def digest_of(key: str) -> str:
    return name_of(key).rpartition("/")[2]


def owner(connection: Connection) -> str | None:
    """Return the identity of the database; None: it has never had shared files."""
    return connection.scalar(select(objects.c.sha256).where(objects.c.key == OWNER))


def identity(connection: Connection, proposed: str) -> str:
    """Return the identity of the database: ``proposed`` if it had none."""
    if (recorded := owner(connection)) is not None:
        return recorded
    row = {"key": OWNER, "sha256": proposed, "size_bytes": 0, "state": ObjectState.OWNER.value}
    connection.execute(insert(objects).values(row | {"touched_at": now(connection)}))
    return proposed


def begin(connection: Connection, added: StoredObject) -> None:
    """Record that an object is about to be put, under a key that was never used before."""
    row = {"key": added.key, "sha256": added.sha256, "size_bytes": added.size_bytes}
    row |= {"state": ObjectState.PENDING.value, "touched_at": now(connection)}
    connection.execute(insert(objects).values(row))


def finish(connection: Connection, key: str) -> bool:
    """Record that an object was put; False: a sweep has taken it, so it may not be used."""
    is_pending = objects.c.state == ObjectState.PENDING.value
    present = {"state": ObjectState.PRESENT.value, "touched_at": now(connection)}
    result = connection.execute(
        update(objects).where(objects.c.key == key, is_pending).values(present)
    )
    return result.rowcount == 1


def hold(connection: Connection, name: str) -> bool:
    """Touch the objects of a name; returns whether one of them is PRESENT, and so stays."""
    is_present = objects.c.state == ObjectState.PRESENT.value
    touched = update(objects).where(_is_of(name), is_present).values(touched_at=now(connection))
    return connection.execute(touched).rowcount > 0


def touch(connection: Connection, digests: Collection[str], keys: Collection[str]) -> None:
    """Touch the objects that a server uses, by their digests, and those that it puts now."""
    stored = connection.scalars(select(objects.c.key).where(objects.c.state != "OWNER"))
    used = [key for key in stored if key in keys or digest_of(key) in digests]
    for batch in _batched(used):
        to_touch = objects.c.key.in_(batch), objects.c.state != ObjectState.DELETING.value
        connection.execute(update(objects).where(*to_touch).values(touched_at=now(connection)))


def mark(connection: Connection, key: str, state: ObjectState) -> None:
    """Change a PRESENT object to DAMAGED, or back; nothing happens to one that is condemned."""
    usable = objects.c.state.in_([ObjectState.PRESENT.value, ObjectState.DAMAGED.value])
    changed = update(objects).where(objects.c.key == key, usable).values(state=state.value)
    connection.execute(changed)


def find(connection: Connection, name: str) -> list[StoredObject]:
    """Objects of a name that were put whole: those PRESENT first, then those DAMAGED."""
    usable = objects.c.state.in_([ObjectState.PRESENT.value, ObjectState.DAMAGED.value])
    rows = connection.execute(
        select(objects).where(_is_of(name), usable).order_by(objects.c.state.desc(), objects.c.key)
    )
    return [
        StoredObject(row.key, row.sha256, row.size_bytes, ObjectState(row.state)) for row in rows
    ]


def condemn(connection: Connection, grace_s: float) -> list[str]:
    """Mark what no row needs and no server has touched for the grace time; returns their keys.

    Of objects of one needed name one is kept, a DAMAGED one only if there is no other. The keys
    are of all objects to be deleted, also those of a sweep that was cut off.
    """
    states = (ObjectState.PENDING.value, ObjectState.PRESENT.value, ObjectState.DAMAGED.value)
    rows = connection.execute(
        select(objects.c.key, objects.c.state)
        .where(objects.c.state.in_(states), objects.c.touched_at < now(connection) - grace_s)
        .with_for_update()
    ).all()
    kept = _kept(connection) if rows else set()
    doomed = [row.key for row in rows if row.key not in kept]
    for some in _batched(doomed):
        doom = update(objects).where(objects.c.key.in_(some))
        connection.execute(doom.values(_doomed(connection)))
    return list(
        connection.scalars(
            select(objects.c.key).where(objects.c.state == ObjectState.DELETING.value)
        )
    )


def abandon(connection: Connection, key: str) -> None:
    """Mark an object whose put failed: it may be deleted at once."""
    is_pending = objects.c.state == ObjectState.PENDING.value
    doom = update(objects).where(objects.c.key == key, is_pending)
    connection.execute(doom.values(_doomed(connection)))


def _doomed(connection: Connection) -> dict[str, Any]:
    return {"state": ObjectState.DELETING.value, "touched_at": now(connection)}


def forget(connection: Connection, keys: Collection[str], grace_s: float) -> None:
    """Remove the rows of objects that were deleted and condemned before the grace time.

    The row stays until then, so that an object that a late put leaves is deleted, too.
    """
    for batch in _batched(keys):
        is_deleting = objects.c.state == ObjectState.DELETING.value
        is_over = objects.c.touched_at <= now(connection) - grace_s
        connection.execute(delete(objects).where(objects.c.key.in_(batch), is_deleting, is_over))


def _kept(connection: Connection) -> set[str]:
    """Key of the object that each needed name is read from."""
    needed = _needed(connection)
    usable = objects.c.state.in_([ObjectState.PRESENT.value, ObjectState.DAMAGED.value])
    rows = connection.execute(
        select(objects.c.key).where(usable).order_by(objects.c.state.desc(), objects.c.key)
    )
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(name_of(row.key), row.key)
    return {key for name, key in first.items() if name in needed}


def _needed(connection: Connection) -> set[str]:
    """Names that the rows of models and jobs need: uploads until their job has ended."""
    names = {f"artefacts/{key}" for key in models_table.artefacts(connection)}
    names |= {f"uploads/{digest}" for digest in jobs_table.uploads_waited_for(connection)}
    return names | {f"samples/{digest}" for digest in models_table.samples(connection)}


def _is_of(name: str) -> ColumnElement[bool]:
    return objects.c.key.startswith(f"{name}.", autoescape=True)


def _batched(keys: Collection[str]) -> Iterator[list[str]]:
    all_keys = list(keys)
    for begin in range(0, len(all_keys), _AT_ONCE):
        yield all_keys[begin : begin + _AT_ONCE]
