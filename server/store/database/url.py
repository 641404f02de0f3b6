"""URL of a store's database, with the password from where it is kept."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url

from braid.core.errors import StartupError
from braid.core.regular_file import read_file

MAX_FILE_BYTES = 1 << 20


def database_url(text: str, password_file: Path | None = None) -> URL | None:
    """Return the URL of a database; None: the text is empty.

    Args:
        text: as in BRAID_DATABASE.
        password_file: holds the password, alone in its first line.

    Raises:
        StartupError: the file cannot be read.
    """
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
