"""PostgreSQL, S3 and machines that share them: what ``braid serve`` needs to be one of a fleet."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.fleet import alone, postgres, s3
from tests.fleet.machine import Machine
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

THREADS = (1, 1, 2)
"""Of the machines in turn: two device types, of which the first has two machines."""


def missing() -> str:
    """Why no fleet can run here; empty: one can."""
    return alone.missing() or postgres.missing() or s3.missing()


class Fleet:
    """Machines that share a database and a bucket; they are switched on by ``start``."""

    def __init__(
        self,
        folder: Path,
        postgres: Postgres,
        s3: S3,
        *,
        threads: tuple[int, ...] = THREADS,
        first: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make an empty database and a folder of the bucket; start nothing.

        Args:
            folder: the machines' disks.
            postgres: runs.
            s3: runs.
            threads: of each machine's device.
            first: number of the first machine; two fleets at once must share none.
            environment: of each machine's server.
        """
        self.postgres, self.s3 = postgres, s3
        self.database = f"fleet-{secrets.token_hex(4)}"
        self.url = postgres.create(self.database)
        self.files = f"s3://{s3.bucket}/{self.database}"
        token = folder / "token"
        folder.mkdir(parents=True, exist_ok=True)
        token.write_text("tests of a fleet, not a secret\n")
        self._folder, self._first = folder, first
        self._environment = {
            "BRAID_DATABASE": self.url,
            "BRAID_FILES": self.files,
            "BRAID_ADMIN_TOKEN_FILE": str(token),
            "BRAID_ALLOW_UNAUTHENTICATED": "true",
            **s3.environment,
            **(environment or {}),
        }
        self.machines: list[Machine] = []
        for count in threads:
            self.add(count)

    def add(self, threads: int = 1, **environment: str) -> Machine:
        """One more machine, off, whose device has this many threads."""
        number = self._first + len(self.machines)
        arguments = ["--threads", str(threads), "--devices", "cpu"]
        settings = {**self._environment, **environment}
        folder = self._folder / f"node-{number}"
        self.machines.append(self.make_machine(number, folder, arguments, settings))
        return self.machines[-1]

    def make_machine(
        self, number: int, folder: Path, arguments: list[str], environment: Mapping[str, str]
    ) -> Machine:
        return Machine(number, folder, arguments, **environment)

    def start(self) -> Self:
        """Switch on all machines that are off, at once, and wait until they are ready."""
        for machine in self.machines:
            if not machine.is_on:
                machine.start(wait=False)
        for machine in self.machines:
            machine.await_ready()
        return self

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the database, read past the servers."""
        return self.postgres.execute(query, self.database)

    def value(self, query: str) -> Any:
        [[value]] = self.rows(query)
        return value

    def power_off(self) -> None:
        for machine in self.machines:
            machine.power_off()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.power_off()
