"""Networks of callers: the part of an address that a caller cannot choose freely."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote


def network_of(address: str) -> str:
    """Return the address; of IPv6 the first 64 bits, as a caller can choose the rest."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((int(found), 64), strict=False))


def network_of_peer(peer: str) -> str:
    """Return the network of ``ipv4:ADDRESS:PORT`` or ``ipv6:[ADDRESS]:PORT`` as gRPC names callers.

    All callers of a Unix socket are one.
    """
    kind, _, where = unquote(peer).partition(":")
    return network_of(where.rpartition(":")[0].strip("[]")) or kind
