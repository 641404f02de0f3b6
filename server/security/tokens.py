"""Bearer tokens, which give their bearer a role, and the role that each call needs.

    file  a token a line, as it is or as ``sha256:HEX``; # begins a comment
    environment  BRAID_ADMIN_TOKEN, BRAID_INFER_TOKEN

Only the SHA-256 of a token is kept. Tokens are long and random (``braid token`` makes them), so a
plain hash cannot be turned back. A file is read again when it changes: a token is withdrawn by
deleting its line. A call that ``NEEDED`` does not list needs the highest role.
"""

import enum
import hmac
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from braid.core.errors import StartupError
from braid.core.regular_file import read_file


class Role(enum.IntEnum):
    """Rights of a caller; each role includes those before it."""

    ANYONE = 0  # health: probes carry no token
    METRICS = 1  # read metrics, as scrapers do
    INFER = 2  # run models, and ask what they take and give
    ADMIN = 3  # register, load, unload and delete models, watch jobs, change settings; the console


_OIP_INFER = (
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "ModelInfer",
    "ModelStreamInfer",
    # Off unless the operator offers it, and then it is for those who run models.
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
)

METRICS = "/metrics"
"""Path of the HTTP port, in place of a method."""

NEEDED: Mapping[str, Role] = {
    METRICS: Role.METRICS,
    "/grpc.health.v1.Health/Check": Role.ANYONE,
    "/grpc.health.v1.Health/Watch": Role.ANYONE,
    "/grpc.health.v1.Health/List": Role.INFER,  # names the models
    "/inference.GRPCInferenceService/ServerLive": Role.ANYONE,
    "/inference.GRPCInferenceService/ServerReady": Role.ANYONE,
    **{f"/inference.GRPCInferenceService/{name}": Role.INFER for name in _OIP_INFER},
    "/braid.v1.InferenceService/Infer": Role.INFER,
    "/braid.v1.InferenceService/InferStream": Role.INFER,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.INFER,
}


OPEN: Final = frozenset(method for method, role in NEEDED.items() if role is Role.ANYONE)
"""Methods that strangers may call."""


def needed_role(method: str) -> Role:
    return NEEDED.get(method, Role.ADMIN)


log = logging.getLogger("braid.security")

MIN_TOKEN_CHARS = 16
MAX_TOKEN_CHARS = 1024
MAX_FILE_BYTES = 16 << 20
HASHED = re.compile(r"sha256:([0-9a-f]{64})")

Digest = bytes
"""SHA-256 of a token, which identifies its callers. Empty for callers without a token."""

Stamp = tuple[int, int] | None
"""When a file was written and its size, to see that it changed."""


def new_token() -> str:
    """Return 43 characters from 256 random bits."""
    return secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    """Return the form of a token in a file, from which the token cannot be read."""
    return f"sha256:{_digest(token).hex()}"


@dataclass(frozen=True, slots=True)
class TokenSource:
    """File and setting with the tokens of one role."""

    role: Role
    file: Path | None = None
    token: str = ""  # as the environment gives it; kept as a hash


class Tokens:
    """Roles of all tokens. Belongs to the event loop."""

    def __init__(self, sources: Sequence[TokenSource]) -> None:
        """Read all tokens. Raises StartupError: a file is not readable, or a token is too short."""
        self._fixed = [
            (_digest(_checked(source.token, "the environment")), source.role)
            for source in sources
            if source.token
        ]
        self._files = {source.file: source.role for source in sources if source.file}
        self._stamps: dict[Path, Stamp] = {}
        self._read: dict[Path, list[Digest]] = {}
        for file in self._files:
            self._stamps[file], self._read[file] = _stamp(file), _read(file)

    @property
    def are_required(self) -> bool:
        """True if tokens are configured. An emptied file still refuses callers without one."""
        return bool(self._fixed or self._files)

    def role_of(self, token: str) -> Role | None:
        """Return a token's highest role, or None. Takes the same time for any wrong token."""
        return self.role_of_digest(digest_of(token))

    def role_of_digest(self, given: Digest) -> Role | None:
        self._refresh()
        highest = Role.ANYONE
        from_files = [(token, role) for at, role in self._files.items() for token in self._read[at]]
        for digest, role in self._fixed + from_files:
            if hmac.compare_digest(given, digest):
                highest = max(highest, role)
        return highest or None

    def is_admin(self, given: Digest) -> bool:
        return self.role_of_digest(given) is Role.ADMIN

    def may_own(self, owner: Digest) -> bool:
        """True if a token of this digest is still accepted, or is empty, or none is required."""
        return not owner or not self.are_required or self.role_of_digest(owner) is not None

    def role_in(self, metadata: Mapping[str, str]) -> Role | None:
        """Return the role in ``authorization: Bearer ...``; ANYONE if there is no such header."""
        header = metadata.get("authorization")
        if header is None:
            return Role.ANYONE
        token = _bearer_token(header)
        return None if token is None else self.role_of(token)

    def _refresh(self) -> None:
        for file in self._files:
            stamp = _stamp(file)
            if stamp == self._stamps[file]:
                continue
            self._stamps[file] = stamp
            try:
                self._read[file] = _read(file)
                log.info("tokens read again", extra={"file": str(file)})
            except StartupError as error:
                # A broken file may have been meant to withdraw a token: no token is accepted.
                self._read[file] = []
                log.error("no token of this file counts", extra={"reason": str(error)})


def digest_of(token: str) -> Digest:
    """Return the digest of a token as sent; what lies beyond MAX_TOKEN_CHARS does not count."""
    return _digest(token[:MAX_TOKEN_CHARS])


def owner_in(metadata: Mapping[str, str]) -> Digest:
    """Return the digest of a call's bearer token; empty without a token."""
    token = _bearer_token(metadata.get("authorization", ""))
    return b"" if token is None else digest_of(token)


def _bearer_token(header: str) -> str | None:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _digest(token: str) -> Digest:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def _stamp(file: Path) -> Stamp:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _read(file: Path) -> list[Digest]:
    try:
        lines = read_file(file, MAX_FILE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise StartupError(f"token file {file} cannot be read: {reason}") from None
    digests = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if match := HASHED.fullmatch(text):
            digests.append(bytes.fromhex(match[1]))
        elif text:
            digests.append(_digest(_checked(text, f"{file}, line {number}")))
    return digests


def _checked(token: str, where: str) -> str:
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS or not token.isascii():
        raise StartupError(
            f"the token in {where} is not {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} ASCII characters; "
            "`braid token` makes good ones"
        )
    return token
