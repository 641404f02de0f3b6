"""Headers of calls, from their frames."""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from braid.server.http2 import frames
from braid.server.http2.answer_headers import Metadata
from braid.server.http2.frames import ConnectionFault, ErrorCode
from braid.server.http2.hpack import (
    FIELD_BYTES,
    Decoder,
    Field,
    HeaderError,
    HeadersBeyondReason,
    HeadersTooLong,
)

MAX_HEADER_BYTES: Final = 1 << 14
"""Length of a call's headers, as peers are told; a call with more is refused. Binary values that
are joined by commas count apart."""
HEAD_BYTES, ENTRY_BYTES = 1 << 10, 200
"""Memory of the headers of a call, and of each entry of its metadata, beside their characters."""
MAX_BLOCK_BYTES: Final = 1 << 16
"""Bytes of headers that are read at all; a peer that sends more loses its connection."""
MAX_CONTINUATIONS: Final = 64
"""Frames that headers may be continued in."""
WORK_PER_COST: Final = 4096
"""Work of decoding that costs as much as a frame without use."""
KNOWN_BYTES, KNOWN_FIELDS, KNOWN_BLOCKS = 256, 32, 16
"""Longest block, and most blocks, that a connection remembers to read them once."""

Block = tuple[list[Field] | None, bool]
"""Fields of a block, None if they are too long, and bool: nothing follows on the stream."""

_OWN = frozenset({"te", "content-type", "content-length", "grpc-timeout", "grpc-encoding"})
_IGNORED: Final = frozenset({"grpc-accept-encoding"})  # answers are not compressed
_PSEUDO: Final = frozenset({":method", ":path", ":scheme", ":authority"})
_PER_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r" *([0-9]+) *([HMSmun]) *")
MAX_TIMEOUT_DIGITS: Final = 9
_KIND: Final = "application/grpc"


class BadHead(Exception):
    """The headers are those of no gRPC call; the message says why."""


class BadTimeout(BadHead):
    """The headers give a deadline that cannot be read."""


class HeaderBlocks:
    """Blocks of one connection, put together and read in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_BYTES)
        self._blocks: dict[bytes, list[Field]] = {}  # blocks that change no table
        self._blocks_at = 0  # changes of the table then
        self.are_unfinished = False  # headers, which are continued
        self._block = bytearray()
        self._number = self._flags = 0  # of the frame that they began with
        self._continuations = 0
        self._paid = 0

    @property
    def held_bytes(self) -> int:
        return len(self._block)

    def check(self, kind: int) -> None:
        """Raise ConnectionFault unless a frame of this kind may come now."""
        if self.are_unfinished != (kind == frames.CONTINUATION):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers are continued wrongly")

    def cost(self) -> int:
        """Return the work since the last call, in frames without use.

        Blocks that were read before cost nothing.
        """
        whole = self._decoder.work // WORK_PER_COST
        cost, self._paid = whole - self._paid, whole
        return cost

    def begin(self, flags: int, number: int, payload: bytes) -> Block | None:
        """Take a frame of HEADERS; returns as ``go_on`` does."""
        if flags & frames.PADDED:
            if not payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is cut off")
            if payload[0] >= len(payload):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
            payload = payload[1 : len(payload) - payload[0]]
        if flags & frames.PRIORITISED:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a priority is cut off")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            return self._read(payload), bool(flags & frames.END_STREAM)
        self._block, self._number, self._flags = bytearray(payload), number, flags
        self.are_unfinished, self._continuations = True, 0
        return None

    def go_on(self, flags: int, number: int, payload: bytes) -> Block | None:
        """Take a frame of CONTINUATION; None: the block goes on. Raises ConnectionFault."""
        if number != self._number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers are continued wrongly")
        self._block += payload
        self._continuations += 1
        if len(self._block) > MAX_BLOCK_BYTES or self._continuations > MAX_CONTINUATIONS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers are too long")
        if not flags & frames.END_HEADERS:
            return None
        block = bytes(self._block)
        self.are_unfinished, self._block = False, bytearray()
        return self._read(block), bool(self._flags & frames.END_STREAM)

    def _read(self, block: bytes) -> list[Field] | None:
        """Return the fields of a block, the same list again for a block that was read before."""
        changes = self._decoder.changes
        if changes == self._blocks_at and (fields := self._blocks.get(block)) is not None:
            return fields
        try:
            fields = self._decoder.decode(block)
            is_short = len(block) <= KNOWN_BYTES and len(fields) <= KNOWN_FIELDS
            if is_short and self._decoder.changes == changes:
                self._remember(block, fields)
            return fields
        except HeadersTooLong:
            return None
        except HeadersBeyondReason as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except HeaderError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error

    def _remember(self, block: bytes, fields: list[Field]) -> None:
        if self._blocks_at != self._decoder.changes or len(self._blocks) == KNOWN_BLOCKS:
            self._blocks.clear()
        self._blocks_at = self._decoder.changes
        self._blocks[block] = fields


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Headers of a call; interceptors get them as ``grpc.HandlerCallDetails``."""

    method: str  # its path
    invocation_metadata: Metadata
    timeout_s: float | None
    encoding: str  # of compressed messages: "identity", "gzip", "deflate" or unknown
    length: int | None  # bytes of the body, if the headers tell
    size_bytes: int  # of memory


def read_head(fields: Iterable[Field]) -> RequestHead:
    """Read the headers of a call. Raises BadTimeout, BadHead or HeadersTooLong."""
    kind = ""
    pseudo: dict[str, str] = {}
    timeout_s: float | None = None
    encoding = "identity"
    length: int | None = None
    metadata: list[tuple[str, str | bytes]] = []
    split_bytes = 0
    size_bytes = HEAD_BYTES
    is_regular = False
    try:
        for name, value in fields:
            _check_field(name, value)
            if name[0] == ":":
                if name not in _PSEUDO or name in pseudo or is_regular:
                    raise BadHead(f"{name} is out of place")
                pseudo[name] = value
                continue
            is_regular = True
            if name in _IGNORED:
                continue
            if name not in _OWN:
                size_bytes += len(name) + len(value) + ENTRY_BYTES
                if not name.endswith("-bin"):
                    metadata.append((name, value))
                    continue
                split_bytes += value.count(",") * (len(name) + FIELD_BYTES)
                if split_bytes > MAX_HEADER_BYTES:
                    raise HeadersTooLong("too many values are joined")
                metadata += ((name, _decoded(part)) for part in value.split(","))
            elif name == "grpc-timeout":
                timeout_s = _seconds(value)
            elif name == "grpc-encoding":
                encoding = value
            elif name == "content-type":
                kind = value
            elif name == "content-length":
                length = _natural(value)
            elif value != "trailers":  # of te
                raise BadHead("te allows nothing but trailers")
    except (ValueError, KeyError, IndexError) as error:
        raise BadHead("a header cannot be read") from error
    path = pseudo.get(":path", "")
    is_grpc = kind == _KIND or kind.startswith((_KIND + "+", _KIND + ";"))
    if pseudo.get(":method") != "POST" or not path.startswith("/") or not is_grpc:
        raise BadHead("not a call of gRPC")
    if not pseudo.get(":scheme"):
        raise BadHead("a request names its scheme")
    size_bytes += split_bytes // FIELD_BYTES * ENTRY_BYTES
    return RequestHead(path, tuple(metadata), timeout_s, encoding, length, size_bytes)


def are_trailers(fields: Iterable[Field]) -> bool:
    try:
        for name, value in fields:
            _check_field(name, value)
            if name[0] == ":":
                return False
    except ValueError:
        return False
    return True


def _check_field(name: str, value: str) -> None:
    """Raise ValueError for what no header may have: capitals, control and other characters.

    What passes is printable ASCII, so that it can be logged, compared and sent back.
    """
    if not (name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
        raise ValueError(name)
    if not name or name != name.lower() or " " in name or name in _PER_CONNECTION:
        raise ValueError(name)


def _seconds(value: str) -> float | None:
    """Read a timeout as gRPC's library does; None: it is so long that there is no deadline."""
    read = _TIMEOUT.fullmatch(value)
    if read is None:
        raise BadTimeout("Error parsing 'grpc-timeout' metadata")
    digits = read[1].lstrip("0")
    return int(digits or "0") * _UNITS[read[2]] if len(digits) <= MAX_TIMEOUT_DIGITS else None


def _natural(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise ValueError(value)
    return int(value)


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(value) from error
