"""One machine of a fleet: namespaces with a network card of their own, and a server in them.

The server's parent is the first process of its process namespace. Killing that one is a power cut:
the kernel kills all of the machine at once, and its memory files and its network card go as well.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import psutil

from braid_client import Client, RetryPolicy
from tests import ROOT
from tests.clock import until
from tests.fleet.alone import BRIDGE, HUB, PREFIX
from tests.service.server_process import BRAID, START_SECONDS, http, sum_of

GRPC_PORT, HTTP_PORT = 8001, 8002
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)

_BOOT = """
mount -t tmpfs tmpfs /dev/shm
hostname "$NAME"
echo up
read _
ip link set lo up && ip addr add "$ADDRESS/24" dev eth0 && ip link set eth0 up || exit 99
ip route add default via "$HUB"
"$@" >"$LOG" 2>&1 </dev/null &
wait $!
"""


@cache
def skew_library() -> Path:
    """The compiled skew.c, until this process ends."""
    folder = mkdtemp(prefix="braid-skew-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder) / "skew.so"
    source = Path(__file__).with_name("skew.c")
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def skew_variables(seconds: int) -> dict[str, str]:
    """Environment of a process whose wall clock is wrong by so many seconds."""
    if not seconds:
        return {}
    return {"LD_PRELOAD": str(skew_library()), "FLEET_TEST_CLOCK_OFFSET": str(seconds)}


class Machine:
    """A machine with a fixed address and disk; one ``braid serve`` runs on it at a time."""

    def __init__(self, number: int, folder: Path, arguments: list[str], **environment: str) -> None:
        """Start nothing yet.

        Args:
            number: from 1; the last part of its address.
            folder: its disk: the store and the logs.
            arguments: of ``braid serve``, beside store and ports.
            environment: variables to set, beside those of this process.
        """
        self.number, self.name = number, f"node-{number}"
        self.host = f"{PREFIX}.{number}"
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.arguments = arguments
        self.environment = environment
        self.starts = 0
        self._boot: subprocess.Popen[bytes] | None = None

    # Its life.

    def start(self, *, skew_seconds: int = 0, wait: bool = True) -> Machine:
        """Switch on, with a wall clock that is wrong by some seconds, and start the server."""
        assert not self.is_on, f"{self.name} is on"
        self.starts += 1
        environment = {
            **os.environ,
            "BRAID_LOG_LEVEL": "DEBUG",
            "BRAID_COMPARE_AGAIN": "false",  # jobs of the tests' own only, however busy it is
            "BRAID_SIDE_BY_SIDE": "false",
            "BRAID_PIN_THREADS": "false",  # all machines share the cores
            "BRAID_NODE_NAME": self.name,
            "BRAID_NODE_ADDRESS": self.address,
            **self.environment,
            "NAME": self.name,
            "ADDRESS": self.host,
            "HUB": HUB,
            "LOG": str(self.log_path),
            **skew_variables(skew_seconds),
        }
        kinds = ("--net", "--mount", "--pid", "--ipc", "--uts")
        apart = ["unshare", *kinds, "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "boot").open("wb") as said:
            self._boot = subprocess.Popen(
                [*apart, "sh", "-c", _BOOT, "sh", *self.command()],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        assert self._boot.stdin is not None
        assert self._boot.stdout is not None
        assert self._boot.stdout.readline() == b"up\n", (self.folder / "boot").read_text()
        self._plug_in()
        self._boot.stdin.write(b"\n")
        self._boot.stdin.flush()
        return self.await_ready() if wait else self

    def command(self) -> list[str]:
        serve = ["serve", "--store", str(self.folder / "store"), "--host", self.host]
        ports = ["--grpc-port", str(GRPC_PORT), "--http-port", str(HTTP_PORT)]
        return [*BRAID, *serve, *ports, *self.arguments]

    def _plug_in(self) -> None:
        """Give it a network card on the bridge; the same one each time, as others remember it."""
        card = ["peer", "name", "eth0", "address", f"02:00:00:00:00:{self.number:02x}"]
        _ip("link", "add", self._port, "type", "veth", *card, "netns", str(self._first.pid))
        _ip("link", "set", self._port, "master", BRIDGE, "up")

    def await_ready(self, seconds: float = START_SECONDS) -> Machine:
        """Wait until the server answers that it is ready."""

        def look() -> bool:
            assert self.is_on, f"{self.name} ended:\n{self.log}"
            with contextlib.suppress(OSError):
                return self.http("/readyz", timeout_s=2) is not None
            return False

        until(look, seconds, lambda: f"{self.name} is not ready:\n{self.log}")
        return self

    @property
    def is_on(self) -> bool:
        return self._boot is not None and self._boot.poll() is None

    def power_off(self) -> None:
        """Kill all of it at once (SIGKILL), and wait until nothing of it is left."""
        if self._boot is None:
            return
        if self.is_on:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._first.kill()
        self._boot.wait(timeout=60)
        self._forget()

    def stop(self) -> int:
        """SIGTERM to the server; its exit code."""
        assert self._boot is not None
        self.server.terminate()
        code = self._boot.wait(timeout=120)
        self._forget()
        return code

    def _forget(self) -> None:
        assert self._boot is not None
        for pipe in (self._boot.stdin, self._boot.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._boot = None
        gone = Path("/proc/net/dev")
        until(lambda: f"{self._port}:" not in gone.read_text(), 30, lambda: "card is left")

    # What can happen to it.

    def unplug(self) -> None:
        """Cut it off: the link goes down, as when the cable is pulled."""
        _ip("link", "set", self._port, "down")

    def replug(self) -> None:
        _ip("link", "set", self._port, "up")

    def pause(self) -> None:
        """Stop all its processes (SIGSTOP), also those that start meanwhile."""

        def are_stopped() -> bool:
            found = False
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.status() not in _STILL:
                        found = True
                        process.send_signal(signal.SIGSTOP)
            return not found

        until(are_stopped, 30)

    def resume(self) -> None:
        """Let its processes go on; the first ones to do so may end others."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    # What is seen of it.

    @property
    def address(self) -> str:
        """host:port of gRPC."""
        return f"{self.host}:{GRPC_PORT}"

    @property
    def log_path(self) -> Path:
        """The log since its last start."""
        return self.folder / f"log-{self.starts}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def server(self) -> psutil.Process:
        [server] = self._first.children()
        return server

    def processes(self) -> Iterator[psutil.Process]:
        """All its processes but the first, parents before their children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from self._first.children(recursive=True)

    def client(self, *, attempts: int = 1) -> Client:
        """A client of this machine's server, by default one that does not try again."""
        return Client(self.address, token=self._token, retry=RetryPolicy(max_attempts=attempts))

    @property
    def _token(self) -> str:
        return Path(self.environment["BRAID_ADMIN_TOKEN_FILE"]).read_text().strip()

    def http(self, path: str, timeout_s: float = 10) -> str:
        return http(f"{self.host}:{HTTP_PORT}{path}", self._token, timeout_s)

    def metric(self, name: str, **labels: str) -> float:
        return sum_of(self.http("/metrics"), name, labels)

    @property
    def _port(self) -> str:
        """The bridge's end of the cable."""
        return f"port{self.number}"

    @property
    def _first(self) -> psutil.Process:
        assert self._boot is not None
        [first] = psutil.Process(self._boot.pid).children()
        return first


def _ip(*arguments: str) -> None:
    ran = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"ip {' '.join(arguments)}: {ran.stderr}"
