from typing import Any

import pytest

from braid.server.cli.main import main
from braid_client import Client, RetryPolicy, Unavailable
from braid_client.proxies import proxy_to
from tests.client.conftest import OnLoop

REFUSES = "127.0.0.1:9"  # "discard": nothing listens


@pytest.fixture(autouse=True)
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://user:secret@{REFUSES}")
    for name in ("grpc_proxy", "no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_on_this_machine_is_reached(braid: Any) -> None:
    assert [model.name for model in braid.models()] == ["echo"]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8001", "127.3.4.5:8001", "localhost:8001", "LOCALHOST.:8001", "[::1]:8001",
        "braid.localhost:8001", "0.0.0.0:8001", "[::ffff:127.0.0.1]:8001", "localhost",
        "dns:///localhost:8001", "dns:localhost:8001", "ipv4:127.0.0.1:8001", "ipv6:[::1]:8001",
        "unix:/run/braid.sock", "unix:///run/braid.sock", "unix-abstract:braid",
    ],
)  # fmt: skip
def test_no_proxy_leads_to_this_machine(address: str) -> None:
    assert proxy_to(address) == ""


@pytest.mark.parametrize(
    "address", ["192.0.2.1:8001", "[2001:db8::1]:8001", "dns:///gpu.example:8001", "nolocalhost:1"]
)
def test_another_machine_is_behind_the_proxy(address: str) -> None:
    assert proxy_to(address) == f"https_proxy={REFUSES}"


@pytest.mark.parametrize(
    ("variable", "value", "address"),
    [
        ("NO_PROXY", "gpu.example", "gpu.example:8001"),
        ("no_proxy", "a.example, .example", "gpu.example:8001"),
        ("no_grpc_proxy", "*", "gpu.example:8001"),
        ("NO_PROXY", "a.example, 192.0.2.0/24", "192.0.2.7:8001"),
    ],
)
def test_exceptions_are_respected(
    variable: str, value: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    assert proxy_to(address) == ""
    assert proxy_to("other.test:8001") != "" or value == "*"


@pytest.mark.parametrize(
    "value", ["", REFUSES, f"https://{REFUSES}", f"//{REFUSES}", "http://", "http://[", "http:"]
)
def test_a_value_that_grpc_does_not_read_is_no_proxy(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", value)

    assert proxy_to("192.0.2.1:8001") == ""


@pytest.mark.parametrize("make", [Client, OnLoop], ids=["sync", "async"])
def test_the_error_names_the_proxy_in_the_way(make: Any) -> None:
    client = make("192.0.2.1:8001", retry=RetryPolicy(max_attempts=1))
    try:
        for call in (client.models, lambda: client.register("net", b"\x08\x08:\0")):
            with pytest.raises(Unavailable, match=rf"through the proxy https_proxy={REFUSES};"):
                call()
    finally:
        client.end() if make is OnLoop else client.close()


@pytest.mark.parametrize("command", ["health", "models"])
def test_commands_name_the_proxy(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--address", "gpu.example:8001"]) == 1

    said = capsys.readouterr().err
    assert f"through the proxy https_proxy={REFUSES}; name the server in NO_PROXY" in said
    assert "secret" not in said
