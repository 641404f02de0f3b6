"""Headers of answers, written without compression.

They are few and short and differ from call to call, so they are literals: no table of the peer has
to be kept in step.
"""

import base64
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from braid_client.wire_fields import encode_varint

Metadata = tuple[tuple[str, str | bytes], ...]

_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters that a status message is sent with as they are."""


def _integer(value: int, bits: int) -> bytes:
    """Encode a length as HPACK does (RFC 7541, section 5.1)."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([value])
    return bytes([limit]) + encode_varint(value - limit)


def literal(name: bytes, value: bytes) -> bytes:
    """Return one header field, not to be indexed."""
    return b"\0" + _integer(len(name), 7) + name + _integer(len(value), 7) + value


ENCODINGS: Final = frozenset({"identity", "deflate", "gzip"})
"""Ways in which messages may be compressed."""

BEGIN: Final = (
    b"\x88"  # :status 200
    + literal(b"content-type", b"application/grpc")
    + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
)
"""Header block that answers begin with."""

_OK = literal(b"grpc-status", b"0")
NOT_GRPC = b"\x08\x03415"  # :status 415, by the name of static entry 8
"""Header block of the answer to what is no call of gRPC."""


def write_refusal(code: int, message: str) -> bytes:
    return BEGIN + write_end(code, message)


def write_end(code: int, message: str, metadata: Metadata = ()) -> bytes:
    """Return the header block of the status and trailing metadata that an answer ends with."""
    if not code and not message:
        return _OK + _fields(metadata)
    status = literal(b"grpc-status", str(code).encode())
    text = literal(b"grpc-message", _quoted(message)) if message else b""
    return status + text + _fields(metadata)


@lru_cache(maxsize=32)
def _quoted(message: str) -> bytes:
    """Return a status message as it is sent; in overload thousands are alike."""
    return quote(message, safe=_PLAIN).encode()


def _fields(metadata: Metadata) -> bytes:
    block = b""
    for name, value in metadata:
        text = base64.b64encode(value) if isinstance(value, bytes) else value.encode("latin-1")
        block += literal(name.encode(), text)
    return block
