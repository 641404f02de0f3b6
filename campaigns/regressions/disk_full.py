"""A disk that runs full during a registration: its job ends, says why, and can be repeated.

    16 MiB for the store ──register──> IMPORTING ──the rest is filled──> FAILED, "disk is full"
                                                 room again ──register──> READY

Needs a disk that may be filled: a tmpfs, which only root can mount.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from braid_client import Client, Job, JobState
from braid_client.errors import BraidError, ResourceExhausted
from campaigns.regressions.scripts import FaultyServer
from tests.models.small import small_cnn

DISK_BYTES = 16 << 20
CHUNK = bytes(1 << 20)
END_SECONDS = 180.0  # an import takes a few, on a machine that does nothing else


def check(server: FaultyServer) -> None:
    """Fill the disk while a model is imported, then make room and register it again."""
    model = small_cnn(server.folder / "cnn.onnx")
    with small_disk(server.store):
        try:
            server.start()
            with server.client() as client:
                _fails_and_works_again(server, client, model)
        finally:
            server.end()


def _fails_and_works_again(server: FaultyServer, client: Client, model: Path) -> None:
    job = client.register("cnn", model, planner="sequential")
    with Filler(server.store / "filler"):
        job = _ended(client, job.id)
        assert job.state is JobState.FAILED, job
        assert "disk is full" in job.message, job.message
        assert "disk is full" in server.log
        with pytest.raises(BraidError, match="has ended already: FAILED"):
            client.cancel_job(job.id)
        with suppress(ResourceExhausted):  # what has to be written is refused; no other error
            client.register("other", model, timeout_s=END_SECONDS)
    again = client.register("cnn", model, planner="sequential", wait=True, timeout_s=END_SECONDS)
    assert again.state is JobState.READY, again.message
    assert again.id != job.id


def _ended(client: Client, job_id: str) -> Job:
    """The job, once it has ended; as it is after a while if it does not."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        (job,) = [job for job in client.jobs() if job.id == job_id]
        if job.ended or time.monotonic() > deadline:
            return job
        time.sleep(0.1)


class Filler:
    """Takes whatever room there is, until left."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill)

    def __enter__(self) -> Filler:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._file.unlink()

    def _fill(self) -> None:
        with self._file.open("wb", buffering=0) as file:
            while not self._stop.wait(0.01):
                with suppress(OSError):
                    while file.write(CHUNK):
                        pass


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own at ``folder``; skips where none may be mounted."""
    folder.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no small disk: mounting a tmpfs is not allowed here (run it as root)")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
