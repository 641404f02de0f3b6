"""The names that the HTTP port is called by, to refuse pages that reached it under another one.

A page of another site can give its own name our address (DNS rebinding), and its scripts then
talk to us from the user's browser as if we were that site. The browser says so in Host. Addresses
cannot be rebound; neither can names that the certificate of a TLS connection proves.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

EVERY = "*"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]/:@]+?)\.?(:[0-9]{0,5})?", re.IGNORECASE)


class HostNames:
    """What ``Host`` may say."""

    def __init__(self, bound: str, further: Sequence[str] = ()) -> None:
        """Collect the names.

        Args:
            bound: where the port listens.
            further: names that an operator gave; ``*`` allows every name.
        """
        names = ("localhost", bound, socket.gethostname(), *further)
        self._names = {name.lower() for name in names}

    def include(self, host: str) -> bool:
        """Whether a ``Host`` header names this server, by name or by any address."""
        if EVERY in self._names:
            return True
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower()
        return name in self._names or _is_address(name.strip("[]"))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
