"""Limits of the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds that callers may take, bytes they may send, and how many connections there may be."""

    request_seconds: float = 5.0  # until a request is there, at least
    response_seconds: float = 10.0  # until its answer is taken, at least
    bytes_per_second: int = 64 << 10  # slower callers get no more time than that
    idle_seconds: float = 75.0  # between two requests of a connection
    page_seconds: float = 60.0  # of a page that only shows; forms take as long as what they change
    head_bytes: int = 16 << 10  # request line and headers
    head_fields: int = 128
    unwanted_bytes: int = 64 << 20  # of a body that was refused, read so that the caller sees why
    max_connections: int = 1024  # where the ports do not share their limit

    @property
    def max_answering(self) -> int:
        return self.max_connections // 2
