"""Addresses: those safe to listen on, the networks of callers, the names of this server."""

import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import unquote

from braid.core.errors import StartupError

EVERY = "*"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]/:@]+?)\.?(:[0-9]{0,5})?", re.IGNORECASE)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address; None: ``text`` is a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; false for names that may be any."""
    name = host.strip("[]")
    if host.startswith("unix:") or name.lower() in ("localhost", "ip6-localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def is_wildcard(host: str) -> bool:
    address = _address(host.strip("[]"))
    return address is not None and address.is_unspecified


def check_exposure(host: str, *, authenticated: bool, allowed: bool) -> None:
    """Raise StartupError where other machines could call unauthenticated, unless allowed."""
    if is_loopback(host) or authenticated or allowed:
        return
    raise StartupError(
        f"listening on {host} would let everyone who reaches it register and run models; set "
        "BRAID_ADMIN_TOKEN_FILE (`braid token` makes tokens), or BRAID_TLS_CLIENT_CA for "
        "certificates of clients, or say BRAID_ALLOW_UNAUTHENTICATED=true if something else "
        "keeps strangers away"
    )


def network_of(address: str) -> str:
    """Return the part of an address that a caller cannot choose: of IPv6 the first 64 bits."""
    parsed = _address(address)
    if parsed is None or parsed.version == 4:
        return address
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))


def network_of_peer(peer: str) -> str:
    """Return the network of ``ipv4:ADDRESS:PORT`` or ``ipv6:[ADDRESS]:PORT`` as gRPC names callers.

    All callers of a Unix socket are one.
    """
    kind, _, where = unquote(peer).partition(":")
    return network_of(where.rpartition(":")[0].strip("[]")) or kind


class HostNames:
    """Names that ``Host`` may give; requests that reached the HTTP port by others are refused.

    Another site can point its own name at this server's address (DNS rebinding); its scripts then
    send requests from the user's browser as if this server were that site. The browser sends that
    name as Host. Addresses cannot be rebound; neither can names that a TLS certificate proves.
    """

    def __init__(self, bound: str, further: Sequence[str] = ()) -> None:
        """The port listens at ``bound``; an operator gives ``further`` names, ``*`` for any."""
        names = ("localhost", bound, socket.gethostname(), *further)
        self._names = {name.lower() for name in names}

    def include(self, host: str) -> bool:
        """True if a ``Host`` header gives a name of this server, or any address."""
        if EVERY in self._names:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower()
        return name in self._names or _address(name.strip("[]")) is not None
