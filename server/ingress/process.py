"""One ingress process, started again whenever it ends.

start ──> up ──ends, or says nothing for SILENT_SECONDS──> a pause ──> start ...
  └────────────────────────── close: for good ──────────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from time import monotonic

from core.errors import BraidError, StartupError
from engine.worker.frames import Message
from engine.worker.options import WorkerEnd
from server.ingress.peer import Inference, Peer
from server.ingress.vitals import SAY_SECONDS, Seen

log = logging.getLogger("braid.ingress")

START_SECONDS = 60.0
END_SECONDS = 2.0  # from the end of the link to SIGKILL
STABLE_SECONDS = 10.0  # who lived this long is replaced at once
MAX_PAUSE_SECONDS = 5.0
SILENT_SECONDS = 15.0


class IngressProcess:
    """Keeps one ingress in service. Belongs to the event loop."""

    def __init__(
        self,
        name: str,
        inference: Inference,
        memory_bytes: int,
        greet: Callable[[], Message],
    ) -> None:
        """What to start, when asked to.

        Args:
            name: in logs and metrics.
            inference: what it may ask for.
            memory_bytes: of shared memory, each way.
            greet: what it is told first.
        """
        self.name = name
        self.is_up = False
        self.on_change: Callable[[], None] = lambda: None
        self.on_end: Callable[[str, WorkerEnd], None] = lambda name, end: None
        self._inference = inference
        self._memory_bytes = memory_bytes
        self._greet = greet
        self._process: asyncio.subprocess.Process | None = None
        self._peer: Peer | None = None
        self._supervisor: asyncio.Task[None] | None = None

    def seen(self) -> Seen | None:
        """How it is, if it was ever started."""
        if self._process is None or self._peer is None:
            return None
        is_there = self._process.returncode is None
        return Seen(self.name, self._process.pid if is_there else None, self._peer.vitals)

    async def start(self) -> None:
        """Start it and keep it in service; returns when it listens.

        Raises:
            StartupError: it cannot; one line says why.
        """
        await self._bring_up()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"{self.name}-supervisor")

    async def close(self) -> None:
        """Let it answer what is in flight with UNAVAILABLE, and end."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        await self._end()

    def tell(self, message: Message) -> None:
        """Send a frame."""
        if self._peer is not None:
            self._peer.tell(message)

    async def _bring_up(self) -> None:
        peer = self._peer = Peer(self._inference, self._memory_bytes)
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *_command(peer, theirs.fileno()),
                pass_fds=(theirs.fileno(), peer.requests.fd, peer.replies.arena.fd),
                start_new_session=True,  # Ctrl-C is the owner's business
                stdin=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            ours.close()
            peer.connection_lost(None)
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: peer, sock=ours)
        peer.tell(self._greet())
        try:
            async with asyncio.timeout(START_SECONDS):
                await peer.started
        except (BraidError, TimeoutError) as error:
            await self._end()
            why = str(error) or f"no word for {START_SECONDS:g} s"
            raise StartupError(f"{self.name} did not start: {why}") from None
        log.info("%s up, process %d", self.name, self._process.pid)
        self._is_up(True)

    async def _end(self) -> None:
        """End the link, and wait for the process."""
        if self._process is None or self._peer is None:
            return
        self._peer.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._is_up(False)

    async def _supervise(self) -> None:
        """Replace the process whenever it ends; pause longer when it ends at once."""
        pause = 0.0
        while True:
            began = monotonic()
            end = await self._ended()
            log.error("%s is replaced: %s", self.name, end.text)
            self.on_end(self.name, end)
            pause = 0.0 if monotonic() - began > STABLE_SECONDS else pause
            await asyncio.sleep(pause)
            pause = min(MAX_PAUSE_SECONDS, pause * 2 + 0.1)
            try:
                await self._bring_up()
            except (BraidError, OSError) as error:
                log.error("%s", error)

    async def _ended(self) -> WorkerEnd:
        """How the process ended, once it has; one that hangs is made to."""
        assert self._process is not None
        assert self._peer is not None
        while not self._peer.lost.is_set() and self._peer.vitals.silent < SILENT_SECONDS:
            self._peer.vitals.silent += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAY_SECONDS):
                    await self._peer.lost.wait()
        if not self._peer.lost.is_set():
            log.error("%s says nothing any more and is killed", self.name)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._end()
        assert self._process.returncode is not None
        return WorkerEnd.of(self._process.returncode, "")

    def _is_up(self, is_up: bool) -> None:
        if is_up is not self.is_up:
            self.is_up = is_up
            self.on_change()


def _command(peer: Peer, link_fd: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "server.ingress.main",
        f"--link-fd={link_fd}",
        f"--requests-fd={peer.requests.fd}",
        f"--replies-fd={peer.replies.arena.fd}",
        f"--memory-bytes={peer.requests.size_bytes}",
    ]
