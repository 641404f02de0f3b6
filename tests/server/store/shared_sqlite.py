"""A SQLite database that several stores of one test open, where it stands for a shared one."""

from pathlib import Path

from sqlalchemy import URL


def let_others_open(database: URL) -> None:
    """Remove the lock by which one server has a SQLite database for itself."""
    if database.get_backend_name() == "sqlite" and database.database:
        Path(f"{database.database}.lock").unlink(missing_ok=True)
