"""Callers kept apart: shared memory by token, console sessions by theirs, pages of other sites."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from braid.server.security.tokens import new_token
from tests.models.small import identity
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess

BYTES = 12  # of the model's input, FP32 [1, 3]


@dataclass(frozen=True)
class Guarded:
    """A server with a token for admins and two for others."""

    server: ServerProcess
    admin_file: Path
    admin: str
    ours: str
    theirs: str

    def ask(
        self, path: str, form: dict[str, str] | None = None, **headers: Any
    ) -> tuple[int, str, str]:
        """Status, cookie and text of an answer of the HTTP port."""
        body = None if form is None else urlencode(form).encode()
        answer = call(self.server, path, body, **headers)
        cookie = answer.headers.get("set-cookie", "").split(";")[0]
        return answer.status, cookie, answer.body.decode()

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: Any
    ) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer of the HTTP port, their names in lower case."""
        answer = call(self.server, path, body, method=method, **headers)
        return answer.status, answer.headers

    def sign_in(self, token: str) -> tuple[int, str, str]:
        return self.ask("/console/sign-in", {"token": token})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    admin, ours, theirs = (new_token() for _ in range(3))
    (folder / "admin").write_text(f"{admin}\n")
    (folder / "infer").write_text(f"{ours}\n{theirs}\n")
    with ServerProcess(
        folder / "store",
        BRAID_ADMIN_TOKEN_FILE=str(folder / "admin"),
        BRAID_INFER_TOKEN_FILE=str(folder / "infer"),
        BRAID_SYSTEM_SHARED_MEMORY="true",
        BRAID_HTTP_HOSTS="braid.example.com",
        BRAID_CORS_ORIGINS="https://app.example.com,http://localhost:3000",
    ).start() as server:
        server.register({"id": identity(folder / "id.onnx")})
        yield Guarded(server, folder / "admin", admin, ours, theirs)


def row() -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    return json.dumps({"inputs": [tensor]}).encode()


def refused(call: object, status: str) -> None:
    with pytest.raises(InferenceServerException) as error:
        call()  # type: ignore[operator]
    assert status in str(error.value.status())


def test_a_shared_memory_region_belongs_to_the_token_that_registered_it(guarded: Guarded) -> None:
    ours, theirs = (
        {"authorization": f"Bearer {token}"} for token in (guarded.ours, guarded.theirs)
    )
    placed = InferInput("x", [1, 3], "FP32")
    placed.set_shared_memory("input", BYTES)
    memory = SharedMemory(create=True, size=BYTES)
    with InferenceServerClient(guarded.server.address) as client:
        np.ndarray(3, np.float32, memory.buf)[:] = [1, 2, 3]
        client.register_system_shared_memory("input", memory.name, BYTES, headers=ours)
        try:
            assert not client.get_system_shared_memory_status(headers=theirs).regions
            refused(
                lambda: client.get_system_shared_memory_status("input", headers=theirs), "NOT_FOUND"
            )
            refused(lambda: client.infer("id", [placed], headers=theirs), "NOT_FOUND")
            refused(
                lambda: client.register_system_shared_memory(
                    "mine", memory.name, BYTES, headers=theirs
                ),
                "FAILED_PRECONDITION",
            )
            client.unregister_system_shared_memory(headers=theirs)
            client.unregister_system_shared_memory("input", headers=theirs)

            answer = client.infer("id", [placed], headers=ours)
            assert answer.as_numpy("y").tolist() == [[1, 2, 3]]
        finally:
            client.unregister_system_shared_memory("input", headers=ours)
            memory.close()
            memory.unlink()
        assert not client.get_system_shared_memory_status(headers=ours).regions


def test_a_withdrawn_token_ends_its_console_session_for_good(guarded: Guarded) -> None:
    before = guarded.admin_file.read_text()
    other = new_token()
    guarded.admin_file.write_text(f"{before}{other}\n")
    status, cookie, _ = guarded.sign_in(other)
    assert (status, bool(cookie)) == (303, True)
    assert "Sign out" in guarded.ask("/console/", Cookie=cookie)[2]

    guarded.admin_file.write_text(before)

    status, _, page = guarded.ask("/console/models/id/1/delete", {}, Cookie=cookie)
    assert (status, "Sign in with the admin token" in page) == (403, True)
    assert "Sign out" not in guarded.ask("/console/", Cookie=cookie)[2]
    guarded.admin_file.write_text(f"{before}{other}\n")
    assert guarded.ask("/console/models/id/1/delete", {}, Cookie=cookie)[0] == 403
    guarded.admin_file.write_text(before)


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example.com:8002", 421), ("localhost:8002", 200), ("braid.example.com", 200)],
)
def test_the_console_answers_to_its_own_names_only(
    guarded: Guarded, host: str, status: int
) -> None:
    token = f"Bearer {guarded.admin}"
    given, _, page = guarded.ask("/console/", Host=host, Authorization=token)

    assert given == status
    assert ("BRAID_HTTP_HOSTS" in page) == (status == 421)
    for path in ("/healthz", "/readyz", "/metrics"):  # probes call it by any name
        assert guarded.ask(path, Host=host, Authorization=token)[0] == 200


@pytest.mark.parametrize("origin", ["https://app.example.com", "http://localhost:3000"])
def test_pages_of_named_origins_call_rest_and_no_others(guarded: Guarded, origin: str) -> None:
    asked: dict[str, Any] = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-a",
    }
    infer, body = "/v2/models/id/infer", row()
    token: dict[str, Any] = {"Authorization": f"Bearer {guarded.ours}"}

    status, told = guarded.send("OPTIONS", infer, Origin=origin, **asked)
    assert (status, told["access-control-allow-origin"]) == (200, origin)
    assert "POST" in told["access-control-allow-methods"]
    assert "x-a" in told["access-control-allow-headers"]
    for path, expected in ((infer, 200), ("/v2/models/none/infer", 404), ("/v2/none", 404)):
        status, told = guarded.send("POST", path, body, Origin=origin, **token)
        assert (status, told["access-control-allow-origin"]) == (expected, origin)
    assert guarded.send("POST", infer, body, Origin=origin)[0] == 401

    other = "https://evil.example.com"
    for path in (infer, "/console/", "/metrics"):
        assert guarded.send("OPTIONS", path, Origin=other, **asked)[0] in (400, 405)
    status, told = guarded.send("POST", infer, body, Origin=other, **token)
    assert (status, "access-control-allow-origin" in told) == (403, False)
    assert "access-control-allow-origin" not in guarded.send("GET", "/console/", Origin=origin)[1]


@pytest.mark.ci
@pytest.mark.parametrize(
    "allowed", [{"BRAID_HTTP_HOSTS": "*"}, {"BRAID_CORS_ORIGINS": "*"}, {"BRAID_HTTP_HOSTS": "a"}]
)
def test_where_every_origin_may_call_cookies_stay_at_home(
    tmp_path: Path, allowed: dict[str, Any]
) -> None:
    with ServerProcess(tmp_path / "store", **allowed) as server:
        guarded = Guarded(server.start(), tmp_path, "", "", "")
        asked: dict[str, Any] = {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "cross-site"}
        preflight = guarded.send(
            "OPTIONS", "/v2", **{**asked, "Access-Control-Request-Method": "POST"}
        )
        simple = guarded.send("POST", "/v2/repository/index", b"{}", **asked)
        with_cookie = guarded.send("POST", "/v2/repository/index", b"{}", **asked, Cookie="sso=1")

    is_open = "*" in allowed.values()
    assert ("access-control-allow-origin" in preflight[1]) is is_open
    assert [simple[0], with_cookie[0]] == ([200, 403] if is_open else [403, 403])


def test_wrong_tokens_are_counted_and_logged_without_the_token(guarded: Guarded) -> None:
    assert guarded.sign_in(guarded.admin)[0] == 303
    wrong = [f"a-wrong-token-number-{number}" for number in range(6)]

    answers = [guarded.sign_in(token) for token in wrong]

    assert [status for status, _, _ in answers] == [403] * 5 + [429]
    assert "Too many wrong tokens came from here" in answers[-1][2]
    assert guarded.sign_in(guarded.admin)[0] == 429
    assert guarded.ask("/console/", Authorization=f"Bearer {guarded.admin}")[0] == 200
    log = guarded.server.log
    assert "signed in to the console" in log
    assert log.count("a wrong token was tried on the console") == 5
    assert "peer=127.0.0.1" in log
    assert [token for token in (*wrong, guarded.admin) if token in log] == []
