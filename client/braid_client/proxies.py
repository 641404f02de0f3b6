"""Proxies that the environment names: gRPC takes them unless the server is on this machine."""

import os
import re
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

_BEFORE_HOST = re.compile(r"(?:(?:dns|ipv4|ipv6):)?(?://[^/]*/)?")
_PORT = re.compile(r":[0-9]+$")


def proxy_to(address: str) -> str:
    """Return the proxy on the way to a server, as VARIABLE=HOST:PORT; "" if there is none.

    gRPC takes the first variable that is set, and no proxy if its value is not of http://.
    """
    read_by_grpc = ("grpc_proxy", "https_proxy", "http_proxy")
    name = next((each for each in read_by_grpc if each in os.environ), "")
    host = _PORT.sub("", _BEFORE_HOST.sub("", address, 1)).strip("[]")
    try:
        proxy = urlsplit(os.environ.get(name, ""))
    except ValueError:
        return ""
    is_http = proxy.scheme == "http" and proxy.netloc
    if not is_http or address.startswith("unix") or _goes_around(host):
        return ""
    return f"{name}={proxy.netloc.rpartition('@')[2]}"


def _goes_around(host: str) -> bool:
    exceptions = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    listed = os.environ.get(next(filter(os.environ.get, exceptions), ""), "")
    if proxy_bypass_environment(host, {"no": listed}):
        return True
    try:
        ip = ip_address(host.removeprefix("::ffff:"))
        ranges = (ip_network(each.strip(), False) for each in listed.split(",") if "/" in each)
        return ip.is_loopback or ip.is_unspecified or any(ip in each for each in ranges)
    except ValueError:
        return f".{host.lower().rstrip('.')}".endswith(".localhost")


def of_proxy(address: str) -> str:
    """Return what a message says of the proxy on the way to a server; "" if there is none."""
    proxy = proxy_to(address)
    return proxy and f" (through the proxy {proxy}; name the server in NO_PROXY to go around it)"
