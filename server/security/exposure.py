"""Which addresses may be listened on without authentication: those of this machine only."""

from __future__ import annotations

import ipaddress

from braid.core.errors import StartupError


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host.startswith("unix:"):
        return True
    name = host.strip("[]")
    if name.lower() in ("localhost", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False  # a name that might resolve to anything


def check_exposure(host: str, *, authenticated: bool, allowed: bool) -> None:
    """Refuse to listen where other machines could call without a token or certificate.

    Raises:
        StartupError: the address is not loopback, nothing authenticates, and no setting allows it.
    """
    if is_loopback(host) or authenticated or allowed:
        return
    raise StartupError(
        f"listening on {host} would let everyone who reaches it register and run models; set "
        "BRAID_ADMIN_TOKEN_FILE (`braid token` makes tokens), or BRAID_TLS_CLIENT_CA for "
        "certificates of clients, or say BRAID_ALLOW_UNAUTHENTICATED=true if something else "
        "keeps strangers away"
    )
