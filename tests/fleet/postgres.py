"""PostgreSQL, by the programs of Debian's package ``postgresql``.

``initdb`` refuses root: the cluster then belongs to the user postgres.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from tests.clock import until
from tests.fleet import alone
from tests.service.server_process import free_port

USER = "braid"
PASSWORD = "not a secret"


def missing() -> str:
    """Why PostgreSQL cannot run here; empty: it can."""
    if _programs() is None:
        return "no PostgreSQL here: apt-get install postgresql"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


def _programs() -> Path | None:
    """Folder of initdb and postgres, of the newest version."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if found := shutil.which("initdb"):
        folders.append(Path(found).parent)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None


class Postgres:
    """One cluster: it outlives its process, which is started and stopped at will."""

    def __init__(self, folder: Path, addresses: Sequence[str] = ("127.0.0.1",)) -> None:
        """Make an empty cluster; start nothing yet.

        Args:
            folder: of the log, to be made.
            addresses: to listen on; clients use the last one.
        """
        self.host, self.port = addresses[-1], free_port()
        self._addresses = addresses
        # Not below pytest's folders: pytest closes them to others, and so to the user postgres.
        place = None if alone.missing() else "/dev/shm"
        self._home = TemporaryDirectory(prefix="braid-postgres-", dir=place)
        home = Path(self._home.name)
        self._data = home / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = folder / "log"
        programs = _programs()
        assert programs is not None
        self._programs = programs
        folder.mkdir(parents=True)
        password = home / "password"
        password.write_text(PASSWORD)
        for path in (home, password):
            self._own(path)
        self._run(
            *("initdb", "--pgdata", str(self._data), "--username", USER, "--no-sync"),
            *("--auth", "scram-sha-256", "--pwfile", str(password)),
            *("--encoding", "UTF8", "--locale", "C"),
        )
        rules = self._data / "pg_hba.conf"
        rules.write_text("host all all all scram-sha-256\n")

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, as ``braid serve --database`` takes it."""
        return f"postgresql+psycopg://{USER}:{PASSWORD}@{self.host}:{self.port}/{database}"

    def create(self, database: str) -> str:
        """Make an empty database; returns its URL."""
        self.execute(f'create database "{database}"')
        return self.url(database)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
            connect_timeout=10,
        )

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own; returns its rows."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> Postgres:
        """Start, and wait until it answers."""
        settings = {
            "listen_addresses": ",".join(self._addresses),
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",
            "fsync": "off",  # survives a kill of its processes, all that tests do to it
            "log_line_prefix": "%m [%p] %d ",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user("postgres", "-D", str(self._data), *options),
                cwd="/",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._answers, 60, self.log_path.read_text)
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_path.read_text()
        try:
            self.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """End: by SIGINT connections are closed at once, by SIGQUIT nothing is written first."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(timeout=60)
            self._process = None

    def remove(self) -> None:
        self.stop()
        self._home.cleanup()

    def statements(self, database: str) -> list[str]:
        """Lines of the log with statements of a database, where it has ``log_statement = all``."""
        kinds = (f"] {database} LOG:  statement:", f"] {database} LOG:  execute")
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [line for line in lines if any(kind in line for kind in kinds)]

    def _run(self, program: str, *arguments: str) -> None:
        command = self._as_user(program, *arguments)
        ran = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def _as_user(self, program: str, *arguments: str) -> list[str]:
        change = []
        if os.geteuid() == 0:
            change = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        return [*change, str(self._programs / program), *arguments]

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0 and (user := _user()):
            os.chown(path, user.pw_uid, user.pw_gid)
