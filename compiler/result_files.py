"""Results as files in a folder, which several processes may use at once.

schedules/MODEL_DIGEST/KEY_ID.json   four lines of JSON: key and time, schedule, graph, checksum
measurements/DEVICE-HASH.log         a line for each: checksum, and the measurement as JSON

The file of a schedule is written whole under another name and renamed, so a crash leaves the
earlier one or none. Measurements are appended, and each has a checksum of its own, which covers the
device key, too: a crash loses the last batch at most. What is damaged counts as missing and is made
again.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from braid.compiler.results import Results, read_graph, read_schedule
from braid.core.descriptors import Descriptor
from braid.core.disk import sync
from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, graph_to_json
from braid.core.measurement import StageLatency
from braid.core.regular_file import read_file
from braid.core.removal import remove_entry
from braid.core.schedule import Schedule, ScheduleKey, schedule_to_json
from braid.core.shortage import shortage

log = logging.getLogger("braid.store")

SCHEDULES, MEASUREMENTS = "schedules", "measurements"

MOST_BYTES = 1 << 30
"""Of a file: a larger one counts as damaged."""

NO_GRAPH = "null"

_UNUSABLE = {errno.EINVAL, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EFBIG, errno.EISDIR}
"""Of something that is no file of ours: it counts as damaged, and a new one takes its place."""


class OfAState(ValueError):
    """A file of an earlier version, for one state of the cores: it serves no more."""


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """Content of the file of one schedule; ``schedule`` and ``graph`` are JSON, in one line."""

    key: ScheduleKey
    stored_unix: float
    schedule: str
    graph: str = NO_GRAPH

    @classmethod
    def of(cls, schedule: Schedule, stored_unix: float, graph: OpGraph | None = None) -> Self:
        text = NO_GRAPH if graph is None else json.dumps(graph_to_json(graph))
        return cls(schedule.key, stored_unix, json.dumps(schedule_to_json(schedule)), text)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a file. Raises ValueError: it is damaged."""
        try:
            body, checksum, _ = content.rsplit(b"\n", 2)
            head, schedule, graph = body.decode().split("\n")
            if checksum != _checksum(body):
                raise ValueError("its checksum does not match")
            fields = json.loads(head)
            if "state" in fields["key"]:
                raise OfAState
            return cls(ScheduleKey(**fields["key"]), fields["stored_unix"], schedule, graph)
        except (LookupError, TypeError, InvalidArtefact) as error:
            raise ValueError(f"it is malformed: {error!r}") from error

    def to_bytes(self) -> bytes:
        head = json.dumps({"key": self.key.to_json(), "stored_unix": self.stored_unix})
        body = "\n".join((head, self.schedule, self.graph)).encode()
        return b"\n".join((body, _checksum(body), b""))


def _checksum(body: bytes) -> bytes:
    return f'"{hashlib.sha256(body).hexdigest()}"'.encode()


class Measurement(NamedTuple):
    """Latency of a stage on a device, as a line holds it."""

    signature: str
    latency_us: float
    spread: float
    repeats: int
    stored_unix: float


class ResultFiles(Results):
    """Schedules and measurements in a folder. All threads and processes may use it at once.

    Any method may raise an OSError of the disk, or SystemShortage.
    """

    def __init__(self, folder: Path) -> None:
        self._schedules = folder / SCHEDULES
        self._measurements = folder / MEASUREMENTS

    # Schedules.

    def put_schedule(self, schedule: Schedule, graph: OpGraph | None = None) -> None:
        self.put_file(ScheduleFile.of(schedule, time.time(), graph))

    def put_file(self, file: ScheduleFile) -> None:
        """Store a schedule; without a graph in ``file``, the one that is stored stays."""
        if file.graph == NO_GRAPH and (stored := self.find_file(file.key)) is not None:
            file = replace(file, graph=stored.graph)
        _write_whole(self._path(file.key), file.to_bytes())

    def put_graph(self, schedule: Schedule, graph: OpGraph) -> None:
        if (stored := self.find_file(schedule.key)) is not None:
            self.put_file(replace(stored, graph=json.dumps(graph_to_json(graph))))

    def find_schedule(self, key: ScheduleKey) -> Schedule | None:
        stored = self.find_file(key)
        return None if stored is None else read_schedule(key.id, stored.schedule)

    def find_graph(self, schedule: Schedule) -> OpGraph | None:
        stored = self.find_file(schedule.key)
        if stored is None or stored.graph == NO_GRAPH:
            return None
        return read_graph(schedule, stored.graph)

    def schedules_of(self, model_digest: str, device_key: str | None = None) -> list[Schedule]:
        folder = self._schedules / _digest(model_digest)
        paths = [folder / name for name in _names(folder) if name.endswith(".json")]
        stored = [file for path in paths if (file := _read_file(path)) is not None]
        stored.sort(key=lambda file: (file.key.batch_size, file.stored_unix))
        files_of_device = [file for file in stored if device_key in (None, file.key.device_key)]
        read = [read_schedule(file.key.id, file.schedule) for file in files_of_device]
        return [schedule for schedule in read if schedule is not None]

    def forget_schedule(self, key: ScheduleKey) -> None:
        path = self._path(key)
        with suppress(FileNotFoundError):
            path.unlink()
            sync(path.parent)

    def find_file(self, key: ScheduleKey) -> ScheduleFile | None:
        """The sound file of a schedule, if there is one."""
        return _read_file(self._path(key))

    def _path(self, key: ScheduleKey) -> Path:
        return self._schedules / _digest(key.model_digest) / f"{key.id}.json"

    # Measurements.

    def put_latencies(self, device_key: str, latencies: Mapping[str, StageLatency]) -> None:
        now = time.time()
        lines = b"".join(
            _line(device_key, Measurement(signature, us.latency_us, us.spread, us.repeats, now))
            for signature, us in latencies.items()
        )
        if not lines:
            return
        path = self._log(device_key)
        _make_folder(path.parent)
        with _locked(path) as file:
            size_bytes = os.fstat(file).st_size
            if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
                lines = b"\n" + lines  # a crash tore the last line
            try:
                _write(file, lines, size_bytes)
                os.fsync(file)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, size_bytes)
                raise
            if not size_bytes:
                sync(path.parent)

    def all_latencies(self, device_key: str) -> dict[str, float]:
        latencies_us: dict[str, float] = {}
        for measurement in self.measurements(device_key):
            latencies_us.pop(measurement.signature, None)
            latencies_us[measurement.signature] = measurement.latency_us
        return latencies_us

    def measurements(self, device_key: str) -> list[Measurement]:
        """All measurements of a device that are sound, in the order in which they were stored."""
        path = self._log(device_key)
        lines = (_read(path) or b"").split(b"\n")[:-1]  # what follows is torn, or being written
        bodies = [body for line in lines if (body := _sound(device_key, line))]
        if len(bodies) < len(list(filter(None, lines))):
            facts = {"file": str(path), "count": len(lines) - len(bodies)}
            log.warning("damaged measurements are left out", extra=facts)
        rows = json.loads(b"[" + b",".join(bodies) + b"]")
        return [Measurement(*row) for row in rows]

    def _forget_latencies(self, schedule: Schedule) -> None:
        stored, device_key = self.find_file(schedule.key), schedule.key.device_key
        path = self._log(device_key)
        if stored is None or not path.exists():
            return
        with _locked(path):
            measurements = self.measurements(device_key)
            kept = [row for row in measurements if row.stored_unix > stored.stored_unix]
            if len(kept) < len(measurements):
                _write_whole(path, b"".join(_line(device_key, row) for row in kept))

    def _log(self, device_key: str) -> Path:
        name = re.sub(r"\W+", "-", device_key)[:40]
        hashed = hashlib.sha256(device_key.encode()).hexdigest()[:16]
        return self._measurements / f"{name}-{hashed}.log"


def _digest(model_digest: str) -> str:
    """Digest of a model, checked, as it becomes a name of a folder."""
    assert re.fullmatch(r"[0-9a-f]{64}", model_digest), model_digest
    return model_digest


def _read_file(path: Path) -> ScheduleFile | None:
    """Read a file; None, with a warning if there is one, if it cannot be used."""
    content = _read(path)
    if content is None:
        return None
    try:
        stored = ScheduleFile.from_bytes(content)
        if stored.key.id != path.stem:
            raise ValueError("it is of another key")
    except OfAState:
        return None
    except (ValueError, RecursionError) as error:
        log.warning("damaged schedule", extra={"file": str(path), "reason": str(error)})
        return None
    return stored


def _line(device_key: str, measurement: Measurement) -> bytes:
    body = json.dumps(measurement).encode()
    return b"%08x %s\n" % (_crc(device_key, body), body)


def _sound(device_key: str, line: bytes) -> bytes:
    """JSON of a measurement; empty: the line is damaged, or of another device."""
    checksum, _, body = line.partition(b" ")
    return body if checksum == b"%08x" % _crc(device_key, body) else b""


def _crc(device_key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(device_key.encode()))


# Files.


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise shortage(error) or error from None


def _read(path: Path) -> bytes | None:
    """Content of a file; None: there is none, or something that is no file of ours."""
    try:
        return read_file(path, MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise shortage(error) or error from None
        facts = {"file": str(path), "reason": error.strerror}
        log.warning("an unreadable file is left out", extra=facts)
        return None


def _write_whole(path: Path, content: bytes) -> None:
    """Put a file in place of what is at ``path``, whole or not at all, on disk at the return."""
    _make_folder(path.parent)
    part = path.with_name(f"{path.name}.part")
    with _locked(part) as file:
        try:
            os.ftruncate(file, 0)
            _write(file, content, 0)
            os.fsync(file)
            if path.is_dir():
                remove_entry(path)
            part.rename(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise
    sync(path.parent)


def _write(file: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync(folder.parent)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file, empty if it is new; no other thread or process has it open so meanwhile."""
    while True:
        with Descriptor(_open(path)) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            if _is_at(path, file.fileno()):
                yield file.fileno()
                return


def _open(path: Path) -> int:
    """Open a file; what is at its path and is no file of ours is removed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            remove_entry(path)
    try:
        return os.open(path, flags, 0o600)
    except PermissionError:
        remove_entry(path)
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise shortage(error) or error from None


def _is_at(path: Path, file: int) -> bool:
    """True unless another process has renamed or removed the file since it was opened."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False
