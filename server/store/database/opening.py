"""Opening a store's database: SQLite or PostgreSQL, by its URL.

Durability on SQLite: WAL with ``synchronous=FULL``. A commit that returned survives ``kill -9`` and
power loss. A stage measurement takes far longer than the commit that stores it.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from braid.core.disk import disk_failure
from braid.core.errors import BraidError, StartupError
from braid.core.regular_file import read_file
from braid.server.store.database.database import READING, Database
from braid.server.store.database.failures import SharedWatch, failure_of
from braid.server.store.database.migrating import bring_up_to_date
from braid.server.store.database.sqlite_file import StoredFiles, prepare_file
from braid.server.store.disk import DiskWatch

MAX_FILE_BYTES = 1 << 20


def database_url(text: str, password_file: Path | None = None) -> URL | None:
    """URL of a database as in BRAID_DATABASE; None: empty. StartupError: no password file."""
    if not text:
        return None
    url = make_url(text)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if password_file is not None:
        url = url.set(password=_first_line(password_file))
    return url


def usual_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


def sqlite_path(url: URL | None) -> Path | None:
    """Return where a SQLite database lies; None: the URL names none."""
    if url is None or is_shared(url) or not url.database:
        return None
    return Path(url.database).absolute()


def is_shared(url: URL) -> bool:
    """True if several servers may use the database at once."""
    return url.get_backend_name() == "postgresql"


def _first_line(path: Path) -> str:
    try:
        return read_file(path, MAX_FILE_BYTES).decode().split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StartupError(
            f"BRAID_DATABASE_PASSWORD_FILE={path} cannot be read: {reason}"
        ) from None


BUSY_TIMEOUT_MS = 5000

PAGE_CACHE_KIB = 256
"""Page cache of a SQLite connection. The default (2,000) fills as the database grows, which looks
like a leak for an hour; the kernel keeps the file's pages, too."""


def open_database(url: URL, files: StoredFiles) -> Database:
    """Connect, create what is missing, check the rest; StartupError says what is wrong."""
    if is_shared(url):
        upgrade_database(url, files)
        engine = _shared_engine(url)
        readers = engine.execution_options(isolation_level="REPEATABLE READ")
        return Database(engine, readers, SharedWatch())
    engine = _sqlite_engine(url, files)
    _upgrade(engine, url, files.folder)
    readers = engine.execution_options(**{READING: True})
    return Database(engine, readers, DiskWatch(files.folder))


def upgrade_database(url: URL, files: StoredFiles) -> str:
    """Bring a database to this version's tables; returns its revision; raises StartupError."""
    engine = _shared_engine(url, may_change=True) if is_shared(url) else _sqlite_engine(url, files)
    revision = _upgrade(engine, url, files.folder)
    engine.dispose()
    return revision


def _upgrade(engine: Engine, url: URL, folder: Path) -> str:
    try:
        return bring_up_to_date(engine)
    except (DBAPIError, BraidError) as error:
        engine.dispose()
        if isinstance(error, StartupError):
            raise
        raise StartupError(_why(error, url, folder)) from error


def beat_engine(database: Database) -> Engine:
    """Engine of its own for the beats of a node: one connection, which waits for no other.

    READ COMMITTED: each beat changes rows of its node alone, by the values they have then.
    """
    if not database.is_shared:
        return database.engine
    engine = _shared_engine(database.engine.url)
    return engine.execution_options(isolation_level="READ COMMITTED")


def _why(error: BaseException, url: URL, folder: Path) -> str:
    """Line that says why a database cannot be opened, and what to do."""
    if is_shared(url):
        failure = failure_of(error) if isinstance(error, DBAPIError) else None
        reason = str(getattr(error, "orig", error)).strip().split("\n", 1)[0]
        remedy = "start it or check BRAID_DATABASE" if failure else "check BRAID_DATABASE"
        return f"the store's database {url} cannot be used ({reason}); {remedy}"
    if failure := disk_failure(error, folder):
        return f"the store's database cannot be used: {failure}"
    return (
        f"the store's database {url} cannot be used ({getattr(error, 'orig', error)}); "
        "restore it from a backup or choose another BRAID_STORE"
    )


def _shared_engine(url: URL, *, may_change: bool = False) -> Engine:
    """Make the engine of a PostgreSQL; one that may change tables waits longer."""
    try:
        from braid.server.store.database import postgresql

        return postgresql.make_engine(url, postgresql.CHANGING_TABLES if may_change else None)
    except (ImportError, SQLAlchemyError) as error:
        raise StartupError(
            f"a database {url.drivername}:// needs psycopg ({error}): "
            "pip install 'braid-serve[fleet]'"
        ) from error


def _sqlite_engine(url: URL, files: StoredFiles) -> Engine:
    if (path := sqlite_path(url)) is not None:
        prepare_file(path, files)
    engine = create_engine(url)
    event.listen(engine, "connect", _tune_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _tune_sqlite(connection: DBAPIConnection, _: Any) -> None:
    """Make commits durable, and leave the begin of transactions to ``_begin_sqlite``."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA temp_store=MEMORY")  # what is full is the store's disk, never another
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute(f"PRAGMA cache_size=-{PAGE_CACHE_KIB}")  # negative: in KiB
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Writers take their lock at once; readers need none, nor a disk that can be written."""
    is_reading = connection.get_execution_options().get(READING, False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
