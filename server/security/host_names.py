"""Names of the HTTP port: requests that reached it under any other name are refused.

Another site can point its own name at this server's address (DNS rebinding); its scripts then send
requests from the user's browser as if this server were that site. The browser sends that name as
Host. Addresses cannot be rebound; neither can names that a TLS certificate proves.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

EVERY = "*"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]/:@]+?)\.?(:[0-9]{0,5})?", re.IGNORECASE)


class HostNames:
    """Names that ``Host`` may give."""

    def __init__(self, bound: str, further: Sequence[str] = ()) -> None:
        """Collect the names.

        Args:
            bound: where the port listens.
            further: names that an operator gave; ``*`` allows every name.
        """
        names = ("localhost", bound, socket.gethostname(), *further)
        self._names = {name.lower() for name in names}

    def include(self, host: str) -> bool:
        """Bool: a ``Host`` header gives a name of this server, or any address."""
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
