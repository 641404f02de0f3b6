import asyncio
import contextlib
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from braid.server.inference.call_memory import CallMemory
from braid.server.limits import memory_limits
from braid.server.observability.tracing import Sampling
from braid.server.ports.grpc_port import GrpcPorts
from braid.server.settings import load_settings

SERVED = {
    "127.0.0.1": {"127.0.0.1": "ipv4"},
    "::1": {"[::1]": "ipv6"},
    "0.0.0.0": {"127.0.0.1": "ipv4", "[::1]": "ipv6"},
    "::": {"127.0.0.1": "ipv4", "[::1]": "ipv6"},
}
"""What is reached at each host, and the kind of peer that callers are there."""


async def tell(_: bytes, context: Any) -> bytes:
    """What a handler knows of its caller."""
    return str(context.peer()).partition(":")[0].encode()


def add_services(server: Any) -> None:
    handlers: Any = {"Who": grpc.unary_unary_rpc_method_handler(tell)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t", handlers)])


@asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[int]:
    """Open ports, and their main one's number."""
    given = {"store": folder / "store", "grpc_port": 0, "allow_unauthenticated": True, **more}
    settings = load_settings(given)
    ports = GrpcPorts(settings, add_services, Sampling(), CallMemory(memory_limits(settings)))
    port = await ports.start()
    try:
        yield port
    finally:
        await ports.close()
        await asyncio.sleep(0)


async def who(channel: grpc.aio.Channel) -> str:
    """What the server knows of this caller."""
    async with channel:
        call: Any = channel.unary_unary("/t/Who")
        return bytes(await call(b"", timeout=120)).decode()


@pytest.mark.parametrize("host", SERVED)
async def test_a_host_is_reached_at_all_its_addresses(tmp_path: Path, host: str) -> None:
    async with opened(tmp_path, host=host) as port:
        for address, kind in SERVED[host].items():
            assert await who(grpc.aio.insecure_channel(f"{address}:{port}")) == kind


async def test_the_admin_socket_is_its_owners_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    for _ in range(2):
        async with opened(tmp_path, admin_address=f"unix:{path}"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert await who(grpc.aio.insecure_channel(f"unix:{path}")) == "unix"
        assert not path.exists()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def secured(folder: Path, authority: trustme.CA, *, mutual: bool) -> dict[str, Path]:
    """Settings of a port with a certificate."""
    write(authority.issue_cert("localhost", "127.0.0.1"), folder, "server")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    files = {"tls_certificate": folder / "server.pem", "tls_key": folder / "server.key"}
    return {**files, "tls_client_ca": folder / "ca.pem"} if mutual else files


def write(certificate: trustme.LeafCert, folder: Path, name: str) -> None:
    certificate.private_key_pem.write_to_path(folder / f"{name}.key")
    certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")


def credentials(
    authority: trustme.CA, shown: trustme.LeafCert | None = None
) -> grpc.ChannelCredentials:
    """Of a client that shows a certificate, or none."""
    roots = authority.cert_pem.bytes()
    if shown is None:
        return grpc.ssl_channel_credentials(roots)
    key, chain = shown.private_key_pem.bytes(), shown.cert_chain_pems[0].bytes()
    return grpc.ssl_channel_credentials(roots, key, chain)


@pytest.mark.parametrize("offered", [[], ["http/1.1"], ["h2"], ["http/1.1", "h2"]])
async def test_only_who_agrees_on_http2_is_greeted(
    tmp_path: Path, authority: trustme.CA, offered: list[str]
) -> None:
    """RFC 9113, section 3.2: HTTP/2 over TLS is agreed on by ALPN."""
    tls = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    if offered:
        tls.set_alpn_protocols(offered)
    async with opened(tmp_path, **secured(tmp_path, authority, mutual=False)) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=tls)
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readexactly(9)
                assert "h2" in offered
                assert head[3] == 4  # SETTINGS
            assert reader.at_eof() == ("h2" not in offered)
        writer.transport.abort()


async def test_a_certificate_that_is_replaced_counts_from_the_next_connection_on(
    tmp_path: Path, authority: trustme.CA
) -> None:
    """Also whom callers are trusted by: both files are read again."""
    other = trustme.CA()
    shown = other.issue_cert("client@example.org")
    async with opened(tmp_path, **secured(tmp_path, authority, mutual=True)) as port:
        with pytest.raises(grpc.aio.AioRpcError):
            await who(grpc.aio.secure_channel(f"localhost:{port}", credentials(authority, shown)))
        secured(tmp_path, other, mutual=True)
        channel = grpc.aio.secure_channel(f"localhost:{port}", credentials(other, shown))
        assert (await who(channel)).startswith("ipv")
