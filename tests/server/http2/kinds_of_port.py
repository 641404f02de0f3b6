"""Ports without and with TLS, for tests that hold on both.

A module whose tests are to run on either imports ``on_each_kind_of_port``; its servers and clients
ask ``server_tls`` and ``client_tls``.
"""

import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest
import trustme

from braid.server.http2.server import Server
from braid.server.security.certificates import Certificates, TlsFiles

_has_tls = [False]


@pytest.fixture(autouse=True, params=["plain", pytest.param("tls", marks=pytest.mark.ci)])
def on_each_kind_of_port(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test of a module on ports of both kinds."""
    _has_tls[0] = request.param == "tls"
    yield
    _has_tls[0] = False


@cache
def _authority() -> tuple[trustme.CA, TemporaryDirectory[str]]:
    authority, folder = trustme.CA(), TemporaryDirectory(prefix="braid-tls-")
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(Path(folder.name) / "key")
    issued.cert_chain_pems[0].write_to_path(Path(folder.name) / "certificate")
    return authority, folder


def add_port(server: Server, *, tls: bool | None = None) -> int:
    """Add a port of the kind that is tried."""
    if not (_has_tls[0] if tls is None else tls):
        return server.add_insecure_port("127.0.0.1:0")
    folder = Path(_authority()[1].name)
    certificates = Certificates(TlsFiles(folder / "certificate", folder / "key"))
    return server.add_secure_port("127.0.0.1:0", certificates.grpc_context())


def client_tls(*, tls: bool | None = None) -> ssl.SSLContext | None:
    """TLS of a client of frames; None: it has none."""
    if not (_has_tls[0] if tls is None else tls):
        return None
    context = ssl.create_default_context(cadata=_authority()[0].cert_pem.bytes().decode())
    context.set_alpn_protocols(["h2"])
    return context


def channel(
    port: int, options: list[tuple[str, int]], *, tls: bool | None = None
) -> grpc.aio.Channel:
    """A channel of gRPC's own client."""
    address = f"127.0.0.1:{port}"
    if not (_has_tls[0] if tls is None else tls):
        return grpc.aio.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(_authority()[0].cert_pem.bytes())
    return grpc.aio.secure_channel(address, credentials, options)
