"""All ingress processes of a server: the port they share, the socket they ask, their metrics.

reserve the port ──> start n processes on it ──> ... ──> end them, release it
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from core.errors import StartupError
from engine.worker.frames import Message
from engine.worker.options import WorkerEnd
from server.ingress.calls import memory_bytes
from server.ingress.peer import Inference
from server.ingress.process import IngressProcess
from server.ingress.vitals import Seen
from server.settings import Settings, settings_to_json

Changed = Callable[[], None]


class IngressProcesses:
    """Belongs to the event loop."""

    def __init__(self, settings: Settings) -> None:
        self.on_change: Changed = lambda: None
        """Told when a process came up or ended."""
        self.on_end: Callable[[str, WorkerEnd], None] = lambda name, end: None
        """Told a process that died, and how."""
        self.all: list[IngressProcess] = []
        self.port = 0
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="braid-"))  # for this user only
        self._reserved: socket.socket | None = None
        self._kept_off: list[int] = []
        self._is_closing = False

    @property
    def owner_socket(self) -> Path:
        """Where the owner is asked for what is not inference."""
        return self._folder / "owner.sock"

    @property
    def names(self) -> list[str]:
        """Of the processes, in logs and metrics."""
        return [f"ingress-{number}" for number in range(self._settings.ingress)]

    @property
    def any_up(self) -> bool:
        """Whether some process takes connections."""
        return any(each.is_up for each in self.all)

    def seen(self) -> list[Seen]:
        """How all of them are."""
        return [seen for each in self.all if (seen := each.seen()) is not None]

    async def start(self, inference: Inference, keep_off: Iterable[int]) -> int:
        """Start all of them; returns their port.

        Args:
            inference: what they may ask for.
            keep_off: cores that are the devices'.

        Raises:
            StartupError: the port cannot be used, or a process does not start.
        """
        self._reserved = reserved_port(self._settings.host, self._settings.grpc_port)
        self.port = self._reserved.getsockname()[1]
        self._kept_off = sorted(keep_off)
        for name in self.names:
            each = IngressProcess(name, inference, memory_bytes(self._settings), self._greeting)
            each.on_change = self._changed
            each.on_end = self.on_end
            self.all.append(each)
        await asyncio.gather(*(each.start() for each in self.all))
        return self.port

    async def close(self) -> None:
        """End all of them: what is still in flight there gets UNAVAILABLE."""
        self._is_closing = True
        await asyncio.gather(*(each.close() for each in self.all))
        if self._reserved is not None:
            self._reserved.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def set_log_level(self, level: int) -> None:
        """Let all of them log as much as this process does."""
        for each in self.all:
            each.tell({"log_level": level})

    def _greeting(self) -> Message:
        settings = {**settings_to_json(self._settings), "grpc_port": self.port}
        return {
            "settings": settings,
            "log_level": logging.getLogger().level,
            "socket": str(self.owner_socket),
            "keep_off": self._kept_off,
        }

    def _changed(self) -> None:
        if not self._is_closing:
            self.on_change()


def reserved_port(host: str, port: int) -> socket.socket:
    """A socket that holds a port for processes of this user that ask to share it.

    It is bound, but does not listen. Another server that listens there is found out: sharing
    the port with it would give each of them some of the connections.

    Raises:
        StartupError: the port cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = partial(socket.socket, family, kind, protocol)
        with made() as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
        shared = made()
        with contextlib.ExitStack() as failing:
            failing.callback(shared.close)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(address)
            failing.pop_all()
        return shared
    except OSError as error:
        raise StartupError(
            f"gRPC address {host}:{port} cannot be used ({error.strerror}); choose another with "
            "BRAID_GRPC_PORT or --grpc-port"
        ) from error
