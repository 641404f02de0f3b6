import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import grpc
import pytest
import trustme

from braid.compiler.options import ModelOptions
from braid.core.errors import ResourceExhausted, StartupError
from braid.server.cli.main import main
from braid.server.inference.call_memory import CallMemory
from braid.server.limits import memory_limits
from braid.server.observability.tracing import Sampling
from braid.server.ports.grpc_port import GrpcPorts
from braid.server.security.addresses import HostNames, is_loopback
from braid.server.security.certificates import Certificates, TlsFiles
from braid.server.security.gate import Gate
from braid.server.security.tokens import Role, Tokens, TokenSource, hashed, new_token
from braid.server.settings import load_settings
from braid.server.store.quota import StoreLimits
from braid.server.store.store import Store


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True),
        ("localhost", True), ("0.0.0.0", False), ("[::]", False), ("10.0.0.1", False),
        ("example.org", False), ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, True),
        ({"host": "0.0.0.0", "admin_token": "x" * 20}, True),
        ({"host": "0.0.0.0", "infer_token": "x" * 20}, True),
        ({"admin_address": "0.0.0.0:0"}, False),
        ({"admin_address": "unix:/tmp/braid.sock"}, True),
        ({"host": "0.0.0.0", "admin_address": "unix:/tmp/braid.sock"}, False),
    ],
)
async def test_strangers_are_let_in_only_if_somebody_said_so(
    given: dict[str, object], starts: bool
) -> None:
    settings = load_settings(given)
    memory = CallMemory(memory_limits(settings))
    if starts:
        GrpcPorts(settings, lambda server: None, Sampling(), memory)
        return
    with pytest.raises(StartupError, match="BRAID_ALLOW_UNAUTHENTICATED"):
        GrpcPorts(settings, lambda server: None, Sampling(), memory)


def test_a_refused_start_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["serve", "--store", str(tmp_path / "s"), "--host", "0.0.0.0", "--grpc-port", "0"])

    assert code in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "given",
    [
        {"tls_certificate": "a.pem"},
        {"tls_client_ca": "a.pem"},
        {"admin_address": "nowhere"},
        {"admin_address": "host:99999"},
    ],
)
def test_settings_that_do_not_go_together_stop_the_start(given: dict[str, str]) -> None:
    with pytest.raises(StartupError):
        load_settings({**given, "admin_token": "a-secret-that-stays-one"})


def test_no_secret_stands_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_ADMIN_TOKEN", "a-secret-that-stays-one")
    with pytest.raises(StartupError) as refused:
        load_settings({"tls_certificate": "a.pem"})

    assert "secret" not in str(refused.value)


def test_tokens_in_files_give_their_role(tmp_path: Path) -> None:
    admin, infer, both = new_token(), new_token(), new_token()
    (tmp_path / "admin").write_text(f"# ops\n\n{hashed(admin)}  # hashed\n{both}\n")
    (tmp_path / "infer").write_text(f"{infer}\n{both}\n")
    tokens = Tokens(
        [TokenSource(Role.ADMIN, tmp_path / "admin"), TokenSource(Role.INFER, tmp_path / "infer")]
    )

    assert [tokens.role_of(token) for token in (admin, infer, both, new_token(), "")] == [
        Role.ADMIN, Role.INFER, Role.ADMIN, None, None,
    ]  # fmt: skip
    assert tokens.role_of(hashed(admin)) is None  # who reads the file cannot use it
    assert tokens.role_in({"authorization": f"bearer {infer}"}) is Role.INFER
    assert tokens.role_in({"authorization": infer}) is None
    assert tokens.role_in({}) is Role.ANYONE


@pytest.mark.parametrize("kind", ["stream_stream", "unary_stream", "stream_unary"])
async def test_an_open_stream_ends_when_its_token_is_withdrawn(tmp_path: Path, kind: str) -> None:
    file, token = tmp_path / "infer", new_token()
    file.write_text(token)
    began, ended = asyncio.Event(), asyncio.Event()

    async def stream(_: Any, context: Any) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    gate = Gate(Tokens([TokenSource(Role.INFER, file)]), recheck_seconds=0.01)
    server = grpc.aio.server(interceptors=[gate])
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(stream)
    service, method = "braid.v1.InferenceService", "InferStream"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            metadata = (("authorization", f"Bearer {token}"),)
            argument = {"request": b""} if kind == "unary_stream" else {}
            call = getattr(channel, kind)(f"/{service}/{method}")(metadata=metadata, **argument)
            await asyncio.wait_for(began.wait(), 120)

            file.write_text("")

            assert await asyncio.wait_for(call.code(), 120) is grpc.StatusCode.UNAUTHENTICATED
            await asyncio.wait_for(ended.wait(), 120)
    finally:
        await server.stop(None)


def test_names_that_an_operator_gave_and_every_address_are_ours() -> None:
    names = HostNames("0.0.0.0", ("Braid.example.com",))

    ours = ("localhost", gethostname(), "braid.EXAMPLE.com.:8002", "192.168.7.7", "[fe80::1]:80")
    assert [host for host in ours if not names.include(host)] == []
    others = ("example.com", "evil-braid.example.com", "1.2.3.4.nip.io", "[::1", "a@localhost", " ")
    assert [host for host in others if names.include(host)] == []
    assert HostNames("127.0.0.1", ("*",)).include("whatever.example.com")


def test_a_file_that_breaks_lets_nobody_in(tmp_path: Path) -> None:
    file, token = tmp_path / "admin", new_token()
    file.write_text(token)
    tokens = Tokens([TokenSource(Role.ADMIN, file)])
    file.write_text("short\n")

    assert tokens.role_of(token) is None
    assert tokens.are_required


@pytest.mark.parametrize("content", [b"short", b"\xff" * 40, "ü".encode() * 20])
def test_weak_tokens_stop_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "admin").write_bytes(content)
    with pytest.raises(StartupError):
        Tokens([TokenSource(Role.ADMIN, tmp_path / "admin")])


def test_the_command_line_makes_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["token"]) == 0
    token, line = (text.split()[1] for text in capsys.readouterr().out.splitlines())
    assert hashed(token) == line


def test_certificates_that_do_not_fit_stop_the_start(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.issue_cert("a").cert_chain_pems[0].write_to_path(tmp_path / "cert")
    ca.issue_cert("b").private_key_pem.write_to_path(tmp_path / "key")
    for key in ("key", "none"):
        with pytest.raises(StartupError, match="TLS"):
            Certificates(TlsFiles(tmp_path / "cert", tmp_path / key))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    limits = StoreLimits(max_bytes=300_000, max_models=2, max_uploads=2)
    made = Store.open(tmp_path / "store", limits)
    yield made
    made.close()


async def register(store: Store, name: str, content: bytes) -> None:
    async with store.receive(1 << 20) as upload:
        await upload.write(content)
        received = await upload.finish(hashlib.sha256(content).hexdigest())
        await store.call(store.register, name, received, ModelOptions())


async def test_the_store_takes_no_more_than_its_quota(store: Store) -> None:
    with pytest.raises(ResourceExhausted, match="BRAID_MAX_STORE_BYTES"):
        await register(store, "big", b"b" * 300_000)
    await register(store, "small", b"s" * 1000)

    assert [model.name for model in store.models()] == ["small"]


async def test_no_more_models_than_allowed(store: Store) -> None:
    for number in range(2):
        await register(store, f"m{number}", b"%d" % number)
    with pytest.raises(ResourceExhausted, match="BRAID_MAX_MODELS"):
        await register(store, "m2", b"2")

    assert len(list(store.folder.uploads.iterdir())) == 2  # the refused one left nothing
