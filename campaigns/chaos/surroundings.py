"""What a server stands on: its disk, system calls, limits and clock, each of which can fail.

tmpfs of some megabytes ──> filled
page shared with faults.c and tests/fleet/skew.c ──> fsync, rename, wall clock
limits of a process ──> descriptors, memory
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import ROOT

DISK_BYTES = 96 << 20
_FAULTS = struct.Struct("qii")  # struct faults of faults.c


@dataclass(frozen=True, slots=True)
class Faults:
    """Numbers in the shared page; zeros: nothing fails."""

    clock_offset_s: int = 0
    fsync_errno: int = 0
    rename_errno: int = 0


class Surroundings:
    """Folder of a campaign, with a disk for the store and faults that can be switched on."""

    def __init__(self, folder: Path) -> None:
        """Make the disk and compile the libraries; says in ``missing`` what cannot be had."""
        self.disk, self.temporary = folder / "disk", folder / "tmp"
        self.disk.mkdir()
        self.temporary.mkdir()
        self.missing: list[str] = []
        page = folder / "faults"
        page.write_bytes(bytes(_FAULTS.size))
        with page.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _FAULTS.size)
        self._mount()
        self.environment = {"TMPDIR": str(self.temporary), **self._preloaded(folder, page)}

    @property
    def store(self) -> Path:
        """Folder of the store, on the disk."""
        return self.disk / "store"

    def _mount(self) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            self.missing.append("a disk that can be filled (no mounts here)")

    def _preloaded(self, folder: Path, page: Path) -> dict[str, str]:
        """Environment that preloads the libraries."""
        libraries = []
        for source, name in (
            (ROOT / "campaigns/chaos/faults.c", "FAULTS"),
            (ROOT / "tests/fleet/skew.c", "OFFSET_FILE"),
        ):
            library = folder / f"{source.stem}.so"
            path = f'-D{name}="{page}"'
            built = ["cc", "-shared", "-fPIC", "-O2", path, "-o", str(library), str(source), "-ldl"]
            try:
                subprocess.run(built, check=True)
            except OSError:
                self.missing.append(f"{source.name} (no C compiler here)")
            else:
                libraries.append(str(library))
        return {"LD_PRELOAD": ":".join(libraries)} if libraries else {}

    def end(self) -> None:
        """Take the disk away."""
        self._page.close()
        subprocess.run(["umount", "--lazy", str(self.disk)], capture_output=True, check=False)

    def set(self, faults: Faults) -> None:
        """Let calls of the server and its children fail from now on, or none."""
        _FAULTS.pack_into(
            self._page, 0, faults.clock_offset_s, faults.fsync_errno, faults.rename_errno
        )

    @contextmanager
    def faulty(self, faults: Faults) -> Iterator[None]:
        """Let calls fail while the context is open."""
        self.set(faults)
        try:
            yield
        finally:
            self.set(Faults())

    @contextmanager
    def full(self, left_bytes: int) -> Iterator[None]:
        """Fill the disk up to ``left_bytes`` while the context is open."""
        filler = self.disk / "filler"
        disk = os.statvfs(self.disk)
        size = max(1, disk.f_bavail * disk.f_frsize - left_bytes)
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # the server took some of it meanwhile
                os.posix_fallocate(descriptor, 0, size)
            yield
        finally:
            os.close(descriptor)
            filler.unlink()


FAILING = (errno.EIO, errno.ENOSPC)
"""What fsync and rename fail with."""


@contextmanager
def limited(process: psutil.Process, what: int, soft: Callable[[int], int]) -> Iterator[None]:
    """Lower a limit of a process while the context is open.

    Args:
        process: of the server.
        what: a resource, as RLIMIT_NOFILE.
        soft: the limit by what the process uses now.
    """
    used = process.num_fds() if what == resource.RLIMIT_NOFILE else _data_bytes(process.pid)
    before = resource.prlimit(process.pid, what)
    resource.prlimit(process.pid, what, (soft(used), before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            if resource.prlimit(process.pid, what)[1] == before[1]:  # else it has set its own
                resource.prlimit(process.pid, what, before)


def _data_bytes(pid: int) -> int:
    """What counts against RLIMIT_DATA.

    Raises:
        ProcessLookupError: it has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    sizes = [line.split()[1] for line in lines if line.startswith("VmData:")]
    if not sizes:
        raise ProcessLookupError(pid)
    return int(sizes[0]) << 10
