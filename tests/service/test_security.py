"""Tokens, roles and certificates, against a server that asks for all of them."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2

from braid.server.cli.main import main
from braid.server.security.tokens import Role, hashed, needed_role, new_token
from braid_client import BraidError, Client, PermissionDenied, RetryPolicy, Tls, Unauthenticated
from braid_client.wire import admin_pb2, inference_pb2
from tests.models.small import identity
from tests.service.server_process import ServerProcess

MARK = "xK9-content-of-a-request-Zq7"
NAMED = b"\x08\x08\x12" + bytes([len(MARK)]) + MARK.encode()  # an ONNX file without a graph

METHODS = [
    (f"/{service.full_name}/{method.name}")
    for file in (admin_pb2, inference_pb2, health_pb2, service_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@dataclass(frozen=True)
class Secured:
    """A server with TLS for both sides, tokens for both roles, and a socket for admins."""

    server: ServerProcess
    folder: Path
    admin: str
    infer: str
    metrics: str
    ca: trustme.CA

    @property
    def tls(self) -> Tls:
        return self.tls_with("client")

    def tls_with(self, name: str) -> Tls:
        files = (self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return Tls(self.folder / "ca.pem", *files)

    def client(self, token: str | None, tls: Tls | None = None) -> Client:
        return Client(
            self.server.address, token=token, tls=tls or self.tls, retry=RetryPolicy(max_attempts=1)
        )

    @property
    def socket(self) -> Path:
        return self.folder / "admin.sock"

    def admin_client(self, token: str | None) -> Client:
        return Client(f"unix:{self.socket}", token=token, retry=RetryPolicy(max_attempts=1))


def write(cert: trustme.LeafCert, folder: Path, name: str) -> None:
    cert.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    cert.private_key_pem.write_to_path(folder / f"{name}.key")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    ca, stranger = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    write(ca.issue_cert("localhost", "127.0.0.1"), folder, "server")
    write(ca.issue_cert("client@example.org"), folder, "client")
    write(stranger.issue_cert("stranger@example.org"), folder, "stranger")
    past = datetime(2020, 1, 1, tzinfo=UTC)
    old = ca.issue_cert("old@example.org", not_before=past, not_after=past + timedelta(days=9))
    write(old, folder, "expired")
    admin, infer, metrics = new_token(), new_token(), new_token()
    (folder / "admin").write_text(f"# the one and only\n{hashed(admin)}\n")
    (folder / "metrics").write_text(metrics)
    server = ServerProcess(
        folder / "store",
        BRAID_TLS_CERTIFICATE=str(folder / "server.pem"),
        BRAID_TLS_KEY=str(folder / "server.key"),
        BRAID_TLS_CLIENT_CA=str(folder / "ca.pem"),
        BRAID_ADMIN_TOKEN_FILE=str(folder / "admin"),
        BRAID_INFER_TOKEN=infer,
        BRAID_METRICS_TOKEN_FILE=str(folder / "metrics"),
        BRAID_ADMIN_ADDRESS=f"unix:{folder / 'admin.sock'}",
    ).start()
    made = Secured(server, folder, admin, infer, metrics, ca)
    server.import_ahead(model := identity(folder / "id.onnx"))
    with made.admin_client(admin) as client:
        client.register("id", model, batch_sizes=[1], wait=True, timeout_s=600)
    yield made
    assert server.stop() == 0


def status_of(target: grpc.Channel, method: str, token: str | None) -> grpc.StatusCode:
    """What a call with an empty stream of requests ends with."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    send: Any = target.stream_stream(method)
    call = send(iter([b""]), metadata=metadata, timeout=120)
    try:
        for _ in call:
            break  # it was let in
    except grpc.RpcError as error:
        return error.code()
    finally:
        call.cancel()
    return grpc.StatusCode.OK


REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@pytest.fixture(scope="module")
def channel(secured: Secured) -> Iterator[grpc.Channel]:
    with grpc.secure_channel(secured.server.address, secured.tls.credentials()) as opened:
        yield opened


@pytest.fixture(scope="module")
def admin_channel(secured: Secured) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{secured.socket}") as opened:
        yield opened


@pytest.mark.parametrize("method", METHODS)
def test_each_call_wants_a_token_of_its_role(
    secured: Secured, channel: grpc.Channel, admin_channel: grpc.Channel, method: str
) -> None:
    role = needed_role(method)
    nobody = status_of(admin_channel, method, None)
    unknown = status_of(admin_channel, method, new_token())
    infer = status_of(admin_channel, method, secured.infer)
    admin = status_of(admin_channel, method, secured.admin)
    elsewhere = status_of(channel, method, secured.admin)

    if role is Role.ANYONE:
        assert not {nobody, unknown, infer, admin, elsewhere} & REFUSED
        return
    assert nobody is unknown is grpc.StatusCode.UNAUTHENTICATED
    assert (infer is grpc.StatusCode.PERMISSION_DENIED) == (role is Role.ADMIN)
    assert admin not in REFUSED
    assert (elsewhere is grpc.StatusCode.PERMISSION_DENIED) == (role is Role.ADMIN)


@pytest.mark.parametrize("name", ["stranger", "expired", None])
def test_no_call_without_a_certificate_of_ours(secured: Secured, name: str | None) -> None:
    """No connection is made, so one method, which takes any token, stands for all."""
    method = "/grpc.health.v1.Health/Check"
    assert needed_role(method) is Role.ANYONE
    tls = secured.tls_with(name) if name else Tls(secured.folder / "ca.pem")
    with grpc.secure_channel(secured.server.address, tls.credentials()) as channel:
        assert status_of(channel, method, secured.admin) is grpc.StatusCode.UNAVAILABLE


def test_whoever_may_run_models_runs_them(secured: Secured) -> None:
    x = np.ones((2, 3), np.float32)
    with secured.client(secured.infer) as client:
        np.testing.assert_array_equal(client.infer("id", {"x": x}).outputs["y"], x)
        assert [a.error for a in client.infer_stream([])] == []
    with secured.client(None) as client, pytest.raises(Unauthenticated):
        client.infer("id", {"x": x})


def test_the_command_line_is_told_of_tls_and_of_hashes(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--address", secured.server.address)
    for command in ("models", "health"):
        assert main([command, *at]) == 1
        assert f"{secured.server.address} speaks TLS: name its" in capsys.readouterr().err
    (secured.folder / "plain").write_text(f"# of the test\n{secured.admin}  # admin\n")
    admin = ("--address", f"unix:{secured.socket}", "--token-file")

    assert main(["models", *admin, str(secured.folder / "admin")]) == 1
    assert "holds hashes, from which no token can be read" in capsys.readouterr().err
    assert main(["models", *admin, str(secured.folder / "plain")]) == 0


def test_a_token_is_withdrawn_by_deleting_its_line(secured: Secured) -> None:
    file = secured.folder / "admin"
    before = file.read_text()
    other = new_token()
    file.write_text(f"{before}{other}  # plain is allowed, too\n")
    with secured.admin_client(other) as client:
        assert client.models()
        file.write_text(before)
        with pytest.raises(Unauthenticated):
            client.models()
    with secured.admin_client(secured.admin) as client:
        assert client.models()


def serial(secured: Secured, port: int) -> str:
    """Serial number of the certificate that a port shows."""
    context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    context.load_cert_chain(secured.folder / "client.pem", secured.folder / "client.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        return str(dict(tls.getpeercert() or {})["serialNumber"])


def test_certificates_are_renewed_without_a_restart(secured: Secured) -> None:
    ports = [int(secured.server.address.rpartition(":")[2]), secured.server.http_port]
    before = [serial(secured, port) for port in ports]
    fresh = secured.ca.issue_cert("localhost", "127.0.0.1")

    fresh.private_key_pem.write_to_path(secured.folder / "server.key")
    assert [serial(secured, port) for port in ports] == before  # half a renewal counts nothing
    fresh.cert_chain_pems[0].write_to_path(secured.folder / "server.pem")

    after = [serial(secured, port) for port in ports]
    assert after[0] == after[1] != before[0]


def test_no_content_of_requests_in_logs_or_metrics(secured: Secured) -> None:
    x = np.ones((1, 3), np.float32)
    bad = f"{MARK}\n\x1b[31m forged line\r\n"
    with secured.client(secured.infer) as client:
        for model, version, name, outputs in (
            (bad, None, "x", None),
            ("id", MARK, "x", None),
            ("id", None, MARK, None),
            ("id", None, "x", [MARK]),
            (f"../../{MARK}", None, "x", None),
        ):
            with pytest.raises(BraidError):
                client.infer(model, {name: x}, outputs, version=version)
        client.infer("id", {"x": x}, request_id=MARK)
        client.infer("id", {"x": np.frombuffer(MARK.encode()[:12], np.float32).reshape(1, 3)})
        with pytest.raises(BraidError):
            client.infer("id", {"x": x}, request_id=MARK * 10)
    with secured.admin_client(secured.admin) as client:
        for attempt in (
            lambda: client.register(bad, b"model"),
            lambda: client.register("bad", MARK.encode() * 10),
            lambda: client.register("bad", NAMED, wait=True, timeout_s=600),
            lambda: client.register("bad", b"m", planner=MARK),
            lambda: client.register("bad", b"m", input_shapes={MARK: [-1]}),
            lambda: client.cancel_job(bad),
            lambda: next(iter(client.watch_job(bad))),
            lambda: client.jobs(bad) or client.model(bad),
            lambda: client.delete(bad),
            lambda: client.schedule("id", device=bad),
        ):
            with pytest.raises(BraidError):
                attempt()
    with secured.client(f"{MARK}-as-a-token-of-nobody") as client, pytest.raises(Unauthenticated):
        client.infer("id", {"x": x})
    with grpc.insecure_channel(f"unix:{secured.socket}") as channel:
        status_of(channel, f"/{MARK}/Call", None)

    context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    at = f"https://localhost:{secured.server.http_port}"
    for path in (f"/{MARK}", f"/metrics?{MARK}=1"):
        with contextlib.suppress(OSError):
            urlopen(Request(at + path, headers={"X-Mark": MARK}), context=context, timeout=120)
    asked = Request(f"{at}/metrics", headers={"Authorization": f"Bearer {secured.metrics}"})
    with urlopen(asked, context=context, timeout=120) as response:
        metrics = response.read().decode()

    assert 'model="id"' in metrics
    assert MARK not in metrics
    assert "job failed" in secured.server.log  # the log is there, and says what happened
    assert MARK not in secured.server.log
    assert "forged line" not in secured.server.log
    assert secured.admin not in secured.server.log
    assert secured.infer not in secured.server.log
    assert secured.metrics not in secured.server.log


def rest_status(secured: Secured, path: str, token: str | None, *, shows_certificate: bool) -> int:
    """Status of a request to the HTTP port; POST where the path is one that changes things."""
    context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    if shows_certificate:
        context.load_cert_chain(secured.folder / "client.pem", secured.folder / "client.key")
    at = f"https://localhost:{secured.server.http_port}{path}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = b"{}" if "repository" in path or path.endswith(("infer", "predict", "again")) else None
    try:
        with urlopen(Request(at, data, headers), context=context, timeout=120) as response:
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("path", "nobody", "stranger", "infer"),
    [
        ("/v2/health/live", 200, 200, 200),
        ("/v2/health/ready", 200, 200, 200),
        ("/v2", 401, 401, 200),
        ("/v2/models/id", 401, 401, 200),
        ("/v2/models/id/infer", 401, 401, 400),  # let in: its body is empty
        ("/v1/models", 401, 401, 200),
        ("/v1/models/id:predict", 401, 401, 400),
        ("/v2/repository/index", 403, 403, 403),  # admin calls go to the socket
        ("/v2/repository/models/id/unload", 403, 403, 403),
        ("/v2/models/id/schedule/again", 403, 403, 403),
        ("/healthz", 200, 200, 200),
        ("/readyz", 200, 200, 200),
        ("/metrics", 401, 401, 200),
        ("/console/", 401, 401, 401),
        ("/console/devices", 401, 401, 401),
    ],
)
def test_rest_calls_need_the_token_that_their_rpc_needs(
    secured: Secured, path: str, nobody: int, stranger: int, infer: int
) -> None:
    tokens = (None, new_token(), secured.infer)

    found = [rest_status(secured, path, token, shows_certificate=True) for token in tokens]

    assert found == [nobody, stranger, infer]


def test_a_scraper_s_token_reads_metrics_and_nothing_else(secured: Secured) -> None:
    for path, status in (("/metrics", 200), ("/v2", 403), ("/console/", 401)):
        assert rest_status(secured, path, secured.metrics, shows_certificate=True) == status
    with secured.client(secured.metrics) as client, pytest.raises(PermissionDenied):
        client.infer("id", {"x": np.ones((1, 3), np.float32)})
    assert rest_status(secured, "/metrics", secured.admin, shows_certificate=False) == 200


def test_rest_calls_need_a_certificate_where_grpc_does(secured: Secured) -> None:
    assert rest_status(secured, "/v2", secured.infer, shows_certificate=False) == 401
    assert rest_status(secured, "/v2", secured.infer, shows_certificate=True) == 200
    assert rest_status(secured, "/healthz", None, shows_certificate=False) == 200
    assert rest_status(secured, "/v2/health/live", None, shows_certificate=False) == 200
