"""Redis, in which the head of Ray keeps what it has to know after a restart."""

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.clock import until
from tests.fleet import alone

PORT = 6379


def is_open(host: str, port: int) -> bool:
    """True if something listens there."""
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), timeout=1).close()
        return True
    return False


class Redis:
    """One Redis on the hub, which keeps nothing after its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str:
        """Why none can run here; empty: one can."""
        return "" if shutil.which("redis-server") else "no Redis here: apt-get install redis-server"

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{alone.HUB}:{PORT}"

    def start(self) -> Self:
        """Start, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = ["redis-server", "--bind", alone.HUB, "--port", str(PORT), "--save", ""]
        command += ["--protected-mode", "no", "--dir", str(self._folder)]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: is_open(alone.HUB, PORT), 30)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
