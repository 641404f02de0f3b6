"""Sockets that listen at the addresses of a host.

A wildcard host, 0.0.0.0 as well as ::, listens on IPv4 and IPv6, as gRPC's own servers do.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any, Final

BACKLOG: Final = 4096
"""Connections that wait to be accepted, as far as the system lets so many wait."""

_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of a machine without IPv6, or without this address."""

_WILDCARDS: Final = ("", "0.0.0.0", "::")


def listen_at(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of a host that this machine has, all at one port; 0: any free one.

    Raises:
        OSError: the port is taken, or the host has no address here.
    """
    if host in _WILDCARDS:
        host = "::" if _has_ipv6() else "0.0.0.0"
    places = dict.fromkeys(
        (family, place)
        for family, _, _, _, place in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    )
    absent: OSError | None = None
    with ExitStack() as failing:
        sockets: list[socket.socket] = []
        for family, place in places:
            try:
                opened = _listening_at(family, (place[0], port, *place[2:]))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
                continue
            sockets.append(failing.enter_context(opened))
            port = int(opened.getsockname()[1])
        if not sockets:
            raise absent or OSError(errno.EADDRNOTAVAIL, "the host has no address")
        failing.pop_all()
    return sockets


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return False
    return True


def _listening_at(family: int, place: Any) -> socket.socket:
    """Return a socket that listens at an address; one for all of IPv6 takes IPv4, too."""
    # asyncio turns Nagle's delays off where the protocol is named.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            is_wildcard = place[0] == "::"
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_wildcard))
        bound.bind(place)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
