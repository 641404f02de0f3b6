"""Objects of the shared files. Every function runs inside the caller's transaction.

    begin ──> PENDING ──finish──> PRESENT <──mark──> DAMAGED
                 └──────condemn──────┴───────────────────┴──> DELETING ──forget──> no row

An object never changes. Its key is ``KIND/DIGEST.RANDOM``, put once and deleted once: a server that
slept may finish its put or its deletion at any time and meets no other object. With keys by digest
alone, a deletion that was decided before a pause would take what was put after it.

The rows of models and jobs need *names*, ``KIND/DIGEST``; any PRESENT object of a name will do.
Whoever stores such a row touches the object in the same transaction (``hold``). A sweep condemns
what no row has needed for the grace time, and nothing without a row: the database may be new, the
wrong one, or restored from an older backup.
"""

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables.dialects import now
from braid.server.store.tables.schema import objects

OWNER = "owner"
"""Key of the row that holds the identity of the database, which a shared place is marked with; it
is touched by the last sweep."""

_AT_ONCE = 500  # keys in one statement


class ObjectState(enum.Enum):
    """State of an object. Values are those of the database."""

    PENDING = "PENDING"  # being put, or cut off in that
    PRESENT = "PRESENT"  # put whole
    DAMAGED = "DAMAGED"  # a server found it missing, or other than it was put
    DELETING = "DELETING"  # of no use to anyone; deleted, or about to be
    OWNER = "OWNER"  # no object: the identity of the database


_USABLE = objects.c.state.in_([ObjectState.PRESENT.value, ObjectState.DAMAGED.value])
_PENDING = objects.c.state == ObjectState.PENDING.value
_DELETING = objects.c.state == ObjectState.DELETING.value
_SOUND_FIRST = objects.c.state.desc(), objects.c.key


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object: what it holds, and where."""

    key: str  # KIND/DIGEST.RANDOM
    sha256: str  # of its bytes
    size_bytes: int
    state: ObjectState = ObjectState.PENDING


def owner(connection: Connection) -> str | None:
    """Return the identity of the database; None: it has never had shared files."""
    return connection.scalar(select(objects.c.sha256).where(objects.c.key == OWNER))


def identity(connection: Connection, proposed: str) -> str:
    """Return the identity of the database: ``proposed`` if it had none."""
    if (recorded := owner(connection)) is not None:
        return recorded
    _insert(connection, StoredObject(OWNER, proposed, 0, ObjectState.OWNER))
    return proposed


def begin(connection: Connection, added: StoredObject) -> None:
    """Record that an object is about to be put, under a key that was never used before."""
    _insert(connection, added)


def finish(connection: Connection, key: str) -> bool:
    """Record that an object was put; False: a sweep has taken it, so it may not be used."""
    present = {"state": ObjectState.PRESENT.value, "touched_at": now(connection)}
    put = update(objects).where(objects.c.key == key, _PENDING).values(present)
    return connection.execute(put).rowcount == 1


def hold(connection: Connection, name: str) -> bool:
    """Touch the objects of a name; returns whether one of them is PRESENT, and so stays."""
    is_present = objects.c.state == ObjectState.PRESENT.value
    touched = update(objects).where(_is_of(name), is_present).values(touched_at=now(connection))
    return connection.execute(touched).rowcount > 0


def touch(connection: Connection, keys: Collection[str]) -> None:
    """Keep objects that are being put from sweeps for the grace time."""
    touched = update(objects).where(objects.c.key.in_(keys), _PENDING)
    connection.execute(touched.values(touched_at=now(connection)))


def mark(connection: Connection, key: str, state: ObjectState) -> None:
    """Change a PRESENT object to DAMAGED, or back; nothing happens to one that is condemned."""
    marked = update(objects).where(objects.c.key == key, _USABLE)
    connection.execute(marked.values(state=state.value))


def find(connection: Connection, name: str) -> list[StoredObject]:
    """Objects of a name that were put whole: those PRESENT first, then those DAMAGED."""
    rows = connection.execute(select(objects).where(_is_of(name), _USABLE).order_by(*_SOUND_FIRST))
    return [
        StoredObject(row.key, row.sha256, row.size_bytes, ObjectState(row.state)) for row in rows
    ]


def takes_sweep(connection: Connection, seconds: float) -> bool:
    """True if no server has begun a sweep for so many seconds; then this one has."""
    is_due = objects.c.touched_at <= now(connection) - seconds
    begun = update(objects).where(objects.c.key == OWNER, is_due)
    return connection.execute(begun.values(touched_at=now(connection))).rowcount > 0


def condemn(connection: Connection, grace_s: float) -> list[str]:
    """Touch what rows need, and mark what none has needed for the grace time.

    Of objects of one needed name one is kept, a DAMAGED one only if there is no other. Returns the
    keys of all objects to be deleted, also those of a sweep that was cut off.
    """
    needed = _needed(connection)
    first: dict[str, str] = {}  # object that each name is read from
    for key in connection.scalars(select(objects.c.key).where(_USABLE).order_by(*_SOUND_FIRST)):
        first.setdefault(key.rpartition(".")[0], key)
    kept = {key for name, key in first.items() if name in needed}
    for some in _batched(kept):
        touched = update(objects).where(objects.c.key.in_(some))
        connection.execute(touched.values(touched_at=now(connection)))
    is_old = objects.c.touched_at < now(connection) - grace_s
    old = connection.scalars(select(objects.c.key).where(_USABLE | _PENDING, is_old)).all()
    doomed = {"state": ObjectState.DELETING.value, "touched_at": now(connection)}
    for some in _batched(set(old) - kept):
        connection.execute(update(objects).where(objects.c.key.in_(some)).values(doomed))
    return list(connection.scalars(select(objects.c.key).where(_DELETING)))


def forget(connection: Connection, keys: Collection[str], grace_s: float) -> None:
    """Remove the rows of objects that were deleted and condemned before the grace time.

    The row stays until then, so that an object that a late put leaves is deleted, too.
    """
    is_over = objects.c.touched_at <= now(connection) - grace_s
    for some in _batched(keys):
        connection.execute(delete(objects).where(objects.c.key.in_(some), _DELETING, is_over))


def _needed(connection: Connection) -> set[str]:
    """Names that the rows of models and jobs need: uploads until their job has ended."""
    names = {f"artefacts/{key}" for key in models_table.artefacts(connection)}
    names |= {f"uploads/{digest}" for digest in jobs_table.uploads_waited_for(connection)}
    return names | {f"samples/{digest}" for digest in models_table.samples(connection)}


def _insert(connection: Connection, added: StoredObject) -> None:
    row = {"key": added.key, "sha256": added.sha256, "size_bytes": added.size_bytes}
    row |= {"state": added.state.value, "touched_at": now(connection)}
    connection.execute(insert(objects).values(row))


def _is_of(name: str) -> ColumnElement[bool]:
    return objects.c.key.startswith(f"{name}.", autoescape=True)


def _batched(keys: Collection[str]) -> Iterator[list[str]]:
    all_keys = list(keys)
    for begin in range(0, len(all_keys), _AT_ONCE):
        yield all_keys[begin : begin + _AT_ONCE]
