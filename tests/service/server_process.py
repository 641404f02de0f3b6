"""A real server as a subprocess, and small real models to feed it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.request import Request, urlopen

import psutil

from braid.core.schedule import schedule_from_json
from braid_client import Client
from tests import ROOT
from tests.clock import until

START_SECONDS = 240.0  # on a machine where twenty others want the core
CONSOLE_SCRIPT = (str(Path(sys.executable).with_name("braid")),)
BRAID = (sys.executable, "-P", "-m", "braid.server.cli.main")
_chance = random.SystemRandom()  # hypothesis seeds the usual one
FOR_TESTS = (sys.executable, "-m", "tests.service.main")


def http(at: str, token: str | None, timeout_s: float = 60) -> str:
    """GET host:port/path, with a token if there is one."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(f"http://{at}", headers=headers), timeout=timeout_s) as response:
        return str(response.read().decode())


def sum_of(metrics: str, name: str, labels: Mapping[str, str]) -> float:
    """Sum of a metric's samples that carry ``labels``; 0 if there are none."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith((f"{name} ", f"{name}{{")) and all(each in line for each in wanted)
    )


class ServerProcess:
    """A server on free ports: ``braid serve``, or one that is composed for tests (main.py)."""

    def __init__(
        self,
        store: Path,
        *,
        command: Sequence[str] = FOR_TESTS,
        folder: Path = ROOT,
        arguments: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """Start nothing yet.

        Args:
            store: folder of the store; the log is written beside it.
            command: ``FOR_TESTS``, whose CPU measures in the serving worker, ``BRAID`` or
                ``CONSOLE_SCRIPT``, which measure in a process of their own.
            folder: working folder.
            arguments: further ones of ``serve``.
            environment: variables to set, beside those of this process.
        """
        self.store = store
        self._command = command
        self._folder = folder
        self._arguments = arguments
        self.log_path = store.with_name(f"{store.name}.log")
        usual = {
            "BRAID_LOG_LEVEL": "DEBUG",
            "BRAID_COMPARE_AGAIN": "false",  # jobs of the tests' own only, however busy it is
        }
        self._environment = {**os.environ, **usual, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, grpc_port: str = "0", arguments: Sequence[str] = ()) -> ServerProcess:
        """Start, also with these arguments, and wait until it is ready."""
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(*self._command, "serve", "--store", str(self.store)),
                    *("--grpc-port", grpc_port, "--http-port", "0", *self._arguments, *arguments),
                ],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await(r" ready .*grpc=(\S+)")
        return self

    def _await(self, pattern: str) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.log)
            assert found or self.process.poll() is None, self.log
            return found

        found = until(look, START_SECONDS, lambda: f"{pattern!r} is not in:\n{self.log}")
        assert found is not None
        return found

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def address(self) -> str:
        """host:port of gRPC."""
        return self._await(r" ready .*grpc=(\S+)")[1]

    @property
    def worker_pid(self) -> int:
        return int(re.findall(r"worker (\d+) of \S+ up", self.log)[-1])

    @property
    def bench(self) -> psutil.Process:
        """The newest worker that registrations measure in, once there is one."""
        started = r"bench of \S+: worker (\d+)"
        self._await(started)
        return psutil.Process(int(re.findall(started, self.log)[-1]))

    def worker_of(self, device: str) -> int:
        return int(re.findall(rf"worker (\d+) of {re.escape(device)} up", self.log)[-1])

    @property
    def starts_of_worker(self) -> int:
        """How often a device worker came up."""
        return len(re.findall(r"worker \d+ of \S+ up", self.log))

    @property
    def http_address(self) -> str:
        """host:port of metrics and console."""
        return self._await(r" ready .*http=(\S+)")[1]

    @property
    def http_port(self) -> int:
        return int(self._await(r" ready .*http=\S+:(\d+)")[1])

    def http(self, path: str) -> str:
        return http(f"{self.http_address}{path}", self._token)

    def metric(self, name: str, **labels: str) -> float:
        return sum_of(self.http("/metrics"), name, labels)

    def import_ahead(self, *models: Path) -> None:
        """Make the artefacts that registering ``models`` would, without a process for each.

        For tests that are not about imports: 20 ms instead of 2.5 s. Call it once the server is
        up, as it sweeps what it does not know when it starts.
        """
        # Imported here: it loads torch, and processes import this module for less.
        from tests.engine.importer.running import import_here

        for model in models:
            artefact = self.store / "artefacts" / sha256(model.read_bytes()).hexdigest()
            if not artefact.exists():
                import_here(model, artefact)

    def register(
        self,
        models: Mapping[str, Path],
        batch_sizes: Sequence[int] = (1,),
        planner: str = "sequential",
    ) -> ServerProcess:
        """Register models, imported ahead, and wait until each has its schedules."""
        self.import_ahead(*models.values())
        with self.client() as client:
            for name, path in models.items():
                client.register(name, path, batch_sizes=batch_sizes, planner=planner, wait=True)
        return self

    def client(self) -> Client:
        """A client of this server, with the admin token if it has one."""
        return Client(self.address, token=self._token)

    @property
    def _token(self) -> str | None:
        file = self._environment.get("BRAID_ADMIN_TOKEN_FILE")
        return (
            Path(file).read_text().strip() if file else self._environment.get("BRAID_ADMIN_TOKEN")
        )

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill_everything(self) -> None:
        """SIGKILL the front end; its children notice and end."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill the front end and all its children, if it is running."""
        if self._process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # it starts no further ones
            children = self.children
            self.kill_everything()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        """SIGTERM, and the exit code once it has ended."""
        if self.process.poll() is None:
            self.terminate()
        return self.process.wait(timeout=120)


def plans_by_size(client: Client, model: str, sizes: Sequence[int]) -> dict[int, set[str]]:
    """Ids of the plans that requests may choose from, by batch size, as answers name them.

    A single row may ride in a larger batch, if that was faster lately, and has that one's plan.
    """
    schedules = {size: schedule_from_json(client.schedule(model, size).schedule) for size in sizes}
    return {
        size: {each.side_by_side_id, *(row.plan_id for row in each.table.rows)}
        for size, each in schedules.items()
    }


@contextlib.contextmanager
def serving(server: ServerProcess, models: Mapping[str, Path], planner: str = "") -> Iterator[None]:
    """Have a started server answer for all models, batch sizes 1 and 4; stop it at the end."""
    try:
        server.register(models, (1, 4), planner)
        yield
    finally:
        code = server.stop()
    assert code == 0


def free_port() -> int:
    """A port that was free a moment ago, for programs that cannot be asked for any.

    The kernel gives it to no program that binds or connects from any port: it is below its range.
    """
    beyond = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _chance.randrange(beyond // 2, beyond)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
