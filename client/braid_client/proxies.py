"""Proxies that the environment names: gRPC takes them unless the server is on this machine."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC reads, in its order
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
_HOST = re.compile(r"(?:(?:dns|ipv4|ipv6):)?(?://[^/]*/)?(\[[^]]*\]|[^:,]*)")


def proxy_to(address: str) -> str:
    """Return the proxy on the way to a server, as VARIABLE=HOST:PORT; "" if there is none."""
    name = next((name for name in _VARIABLES if os.environ.get(name)), "")
    match = _HOST.match(address)
    host = match[1].strip("[]") if match else ""
    if not name or address.startswith("unix") or _is_local(host) or _is_excepted(host):
        return ""
    return f"{name}={urlsplit(os.environ[name]).netloc.rpartition('@')[2]}"


def _is_local(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return f".{host.lower().rstrip('.')}".endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_excepted(host: str) -> bool:
    listed = next((given for name in _EXCEPTIONS if (given := os.environ.get(name))), "")
    if proxy_bypass_environment(host, {"no": listed}):
        return True
    for each in listed.split(","):
        try:
            if ip_address(host) in ip_network(each.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False
