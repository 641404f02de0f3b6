"""System shared memory that clients registered: named windows into objects under /dev/shm.

A region belongs to the token of the caller that registered it: callers with another token cannot
see, use or unregister it, nor register the same object meanwhile. Callers without one share theirs.

Regions are read with preadv, straight into a batch, and written with pwrite, never mapped: a
client that shortens its object while a request runs gets an error, where a mapping would end the
server with SIGBUS. The descriptor is closed when the last reference to its region is gone. Keys
are names in one folder: no path leads out of it, and links are not followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from braid.core.descriptors import Descriptor
from braid.core.errors import (
    InvalidRequest,
    NotFound,
    NotOffered,
    PreconditionFailed,
    ResourceExhausted,
)

Owner = bytes
"""Digest of the token of the caller that registered a region; empty without a token."""

MAX_NAME_CHARS = 128

_KEY = re.compile(r"/?([^/\x00]{1,255})")


@dataclass(frozen=True, slots=True)
class RegionLimits:
    """Folder of the shared memory objects, and the most regions that are kept."""

    folder: Path = Path("/dev/shm")
    of_one_owner: int = 256
    in_all: int = 512


USUAL_LIMITS = RegionLimits()


class SharedRegion:
    """Part of a shared memory object that requests may read and write, by a descriptor."""

    def __init__(
        self,
        name: str,
        key: str,
        offset: int,
        size_bytes: int,
        descriptor: Descriptor,
        max_read_bytes: int,
    ) -> None:
        status = os.fstat(descriptor.fileno())
        self.name = name
        self.key = key
        self.offset = offset
        self.size_bytes = size_bytes
        self.inode = status.st_dev, status.st_ino
        self._descriptor = descriptor
        self._max_read_bytes = max_read_bytes

    def check(self, offset: int, size_bytes: int) -> None:
        """Raise InvalidRequest unless the part lies inside the region."""
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise InvalidRequest(
                f"{size_bytes} bytes at offset {offset} do not lie inside shared memory region "
                f"{self.name!r} of {self.size_bytes} bytes"
            )

    def content(self, offset: int, size_bytes: int) -> SharedContent:
        """Part to be read later. InvalidRequest: outside the region, or more than is allowed."""
        self.check(offset, size_bytes)
        if size_bytes > self._max_read_bytes:
            raise InvalidRequest(
                f"a tensor of {size_bytes} bytes is larger than the {self._max_read_bytes} that "
                "BRAID_MAX_MESSAGE_BYTES allows"
            )
        return SharedContent(self, offset, size_bytes)

    def read_into(self, memory: memoryview, offset: int) -> None:
        """Fill ``memory`` from ``offset`` on. InvalidRequest: outside, or the object is shorter."""
        self.check(offset, len(memory))
        with _as_invalid(self.name):
            count = os.preadv(self._descriptor.fileno(), [memory], self.offset + offset)
        if count != len(memory):
            raise InvalidRequest(
                f"shared memory region {self.name!r} ends after {offset + count} bytes: "
                "its object was shortened after it was registered"
            )

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes into one part. InvalidRequest: outside, or the object takes no more."""
        self.check(offset, len(data))
        with _as_invalid(self.name):
            written = os.pwrite(self._descriptor.fileno(), data, self.offset + offset)
        if written != len(data):
            raise InvalidRequest(f"shared memory region {self.name!r} took {written} bytes only")


@dataclass(frozen=True, slots=True)
class SharedContent:
    """Part of a region, read when a batch is formed. Holds the region."""

    region: SharedRegion
    offset: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        content = bytearray(self.size_bytes)
        self.read_into(memoryview(content), 0)
        return bytes(content)

    def read_into(self, memory: memoryview, start: int) -> None:
        """Fill ``memory`` from byte ``start`` of the part on; see ``SharedRegion.read_into``."""
        self.region.read_into(memory, self.offset + start)


class SharedRegions:
    """All regions by owner and name. Belongs to the event loop."""

    def __init__(
        self,
        is_offered: bool,
        max_read_bytes: int,
        may_own: Callable[[Owner], bool] = lambda owner: True,
        limits: RegionLimits = USUAL_LIMITS,
    ) -> None:
        """``may_own`` tells whose regions are kept; ``max_read_bytes`` limits one tensor."""
        self.is_offered = is_offered
        self._max_read_bytes = max_read_bytes
        self._may_own = may_own
        self._limits = limits
        self._regions: dict[tuple[Owner, str], SharedRegion] = {}

    def register(
        self, owner: Owner, name: str, key: str, offset: int, size_bytes: int
    ) -> SharedRegion:
        """Open an object and give a part of it a name.

        Raises NotOffered, InvalidRequest, NotFound, ResourceExhausted, or PreconditionFailed: the
        name is taken, or the object belongs to another owner.
        """
        self.require_offered()
        self._check_room(owner, name)
        if size_bytes < 1:
            raise InvalidRequest("a shared memory region has at least 1 byte")
        descriptor = Descriptor(_open(self._limits.folder, key))
        _check_window(descriptor.fileno(), key, offset, size_bytes)
        limit = self._max_read_bytes
        region = SharedRegion(name, key, offset, size_bytes, descriptor, limit)
        self._check_owner(owner, region)
        self._regions[owner, name] = region
        return region

    def _check_room(self, owner: Owner, name: str) -> None:
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequest(
                f"a region's name is 1 to {MAX_NAME_CHARS} printable characters, not {name[:140]!r}"
            )
        if (owner, name) in self._regions:
            raise PreconditionFailed(
                f"shared memory region {name!r} is registered already; unregister it first"
            )
        for other in {holder for holder, _ in self._regions}:
            if not self._may_own(other):  # its token was withdrawn
                self.unregister(other, "")
        count = sum(holder == owner for holder, _ in self._regions)
        limits = self._limits
        if count >= limits.of_one_owner or len(self._regions) >= limits.in_all:
            raise ResourceExhausted(
                f"{count} shared memory regions are registered, {len(self._regions)} with those of "
                f"others; unregister some (at most {limits.of_one_owner}, {limits.in_all} in all)"
            )

    def _check_owner(self, owner: Owner, region: SharedRegion) -> None:
        for (other, _), taken in self._regions.items():
            if other != owner and taken.inode == region.inode:
                raise PreconditionFailed(
                    f"shared memory object {region.key!r} is registered by a caller with another "
                    "token; take one of your own"
                )

    def unregister(self, owner: Owner, name: str) -> None:
        """Forget a region, or all of the owner's if ``name`` is empty; one may be unknown."""
        self.require_offered()
        for key in [key for key in self._regions if key[0] == owner and name in ("", key[1])]:
            del self._regions[key]

    def listed(self, owner: Owner, name: str) -> list[SharedRegion]:
        """Return one region, or all of the owner's if ``name`` is empty; or raise NotFound."""
        self.require_offered()
        if name:
            return [self.find(owner, name)]
        return [region for (holder, _), region in self._regions.items() if holder == owner]

    def find(self, owner: Owner, name: str) -> SharedRegion:
        """Region that the owner calls ``name``, usable while referenced; raises NotFound."""
        self.require_offered()
        region = self._regions.get((owner, name))
        if region is None:
            raise NotFound(f"no shared memory region {name[:140]!r} is registered")
        return region

    def require_offered(self) -> None:
        if not self.is_offered:
            raise NotOffered(
                "system shared memory is off on this server; "
                "start it with BRAID_SYSTEM_SHARED_MEMORY=true"
            )


def _open(folder: Path, key: str) -> int:
    name = _KEY.fullmatch(key)
    if name is None or name[1] in (".", ".."):
        raise InvalidRequest(f"{key[:300]!r} is not the name of a shared memory object")
    try:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(folder / name[1], flags)
    except FileNotFoundError:
        raise NotFound(f"there is no shared memory object {key!r}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name"
        raise InvalidRequest(f"shared memory object {key!r} cannot be opened: {reason}") from None


def _check_window(descriptor: int, key: str, offset: int, size_bytes: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or offset + size_bytes > status.st_size:
        raise InvalidRequest(
            f"{size_bytes} bytes at offset {offset} do not lie inside the shared memory "
            f"object {key!r} of {status.st_size} bytes"
        )


@contextmanager
def _as_invalid(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"shared memory region {name!r} cannot be used: {error.strerror}"
        ) from None
