"""The console without a browser: paths, escaping, who may change things, headers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from tests.models.small import small_cnn
from tests.service.oip.rest import Answer, call
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with one scheduled model and an admin token."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "token").write_text(f"{TOKEN}\n")
    with ServerProcess(
        folder / "store", BRAID_ADMIN_TOKEN_FILE=str(folder / "token")
    ).start() as server:
        yield server.register({"cnn": small_cnn(folder / "cnn.onnx")}, (1, 4), planner="")


def ask(
    server: ServerProcess, path: str, form: dict[str, str] | None = None, **headers: Any
) -> tuple[Answer, str]:
    """One request, no redirect followed; with the admin's token unless a header says otherwise."""
    body = None if form is None else urlencode(form).encode()
    answer = call(server, path, body, **{"Authorization": f"Bearer {TOKEN}", **headers})
    return answer, answer.body.decode()


def cookie(server: ServerProcess) -> str:
    response, _ = ask(server, "/console/sign-in", {"token": TOKEN})
    assert response.status == 303
    given = response.headers["set-cookie"]
    assert "HttpOnly" in given
    assert "SameSite=Strict" in given
    return given.split(";")[0]


def test_the_root_leads_to_the_console(console: ServerProcess) -> None:
    for path in ("/", "/console"):
        response, _ = ask(console, path)
        assert (response.status, response.headers["location"]) == (303, "/console/")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "",
            [
                *("cnn", "versions serving", "versions failed", "p99", "device cpu", "MiB"),
                *("of the last minute", "faulty requests", "private memory of server and workers"),
            ],
        ),
        (
            "models/cnn",
            [
                "Serves:",
                "at batch size 1 on cpu",
                "FP32[batch, 3, 16, 16]",
                "Candidates compared, batch 4",
                "one operator after another",
                "KiB",
            ],
        ),
        ("jobs", ["cnn v1", "ready"]),
        ("devices", ["stages measured", "threads", "BRAID_STORE"]),
        ("schedules/cnn/1/1", ["<svg", "planner", "Compare with", "stages measured", "software"]),
        ("schedules/cnn/1/4?block=-1", ["last block", "stream 0"]),
        ("compare/cnn/1/1/4", ["batch 1, cpu against cnn, batch 4", "<svg"]),
        ("register", ["Model file", "portfolio", "bf16", "It is scheduled for cpu"]),
        ("sign-in", ["Admin token"]),
    ],
)
def test_each_page_shows_what_it_is_about(
    console: ServerProcess, path: str, words: list[str]
) -> None:
    response, body = ask(console, f"/console/{path}")

    assert response.status == 200, body
    assert [word for word in words if word not in body] == []
    assert body.count("<h1>") == 1
    assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")


def test_pages_may_load_nothing_from_elsewhere_and_be_framed_by_nobody(
    console: ServerProcess,
) -> None:
    response, body = ask(console, "/console/schedules/cnn/1/1")

    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"\son\w+=|\sstyle=", body), "inline handlers and styles would be blocked"


def test_downloads_are_files_of_their_kind(console: ServerProcess) -> None:
    response, svg = ask(console, "/console/schedules/cnn/1/1/svg")
    assert response.headers["content-type"] == "image/svg+xml"
    ElementTree.fromstring(svg)
    response, trace = ask(console, "/console/schedules/cnn/1/1/perfetto")
    assert 'filename="cnn-1-batch1.perfetto.json"' in response.headers["content-disposition"]
    assert json.loads(trace)["traceEvents"]
    assert json.loads(ask(console, "/console/schedules/cnn/1/4/json")[1])["key"]["batch_size"] == 4


def test_without_signing_in_nothing_can_be_changed_and_no_button_is_shown(
    console: ServerProcess,
) -> None:
    _, body = ask(console, "/console/models/cnn")
    assert "Delete" not in body
    for path in ("models/cnn/1/delete", "models/cnn/1/profile", "jobs/x/cancel"):
        response, _ = ask(console, f"/console/{path}", {})
        assert response.status == 403
        assert ask(console, f"/console/{path}", {}, Cookie="braid-console=guess")[0].status == 403
    assert ask(console, "/console/models/cnn")[0].status == 200


@pytest.mark.parametrize(
    "path",
    ["", "models/cnn", "devices", "jobs", "none", "schedules/cnn/1/1/svg", "models/cnn?version=1"],
)
def test_where_there_are_tokens_pages_ask_for_one_and_lead_back(
    console: ServerProcess, path: str
) -> None:
    for shown in ("", "Bearer of-nobody-at-all"):
        response, body = ask(console, f"/console/{path}", Authorization=shown)
        assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
        assert 'name="token"' in body
        assert f'name="back" value="{path}"' in body
        assert not any(word in body for word in ("cnn v", "BRAID_STORE", "<svg", "FP32"))
    assert ask(console, "/console/console.css", Authorization="")[0].status == 200
    assert ask(console, "/console/sign-in", Authorization="")[0].status == 200

    response, _ = ask(console, "/console/sign-in", {"token": TOKEN, "back": path})

    assert (response.status, response.headers["location"]) == (303, f"/console/{path}")
    session = response.headers["set-cookie"].split(";")[0]
    response, _ = ask(console, f"/console/{path}", Authorization="", Cookie=session)
    assert response.status == (404 if path == "none" else 200)


@pytest.mark.parametrize("back", ["\r\nSet-Cookie: a=b", "é", "a b", "\\\\evil.example"])
def test_no_form_leads_out_of_the_console(console: ServerProcess, back: str) -> None:
    response, _ = ask(console, "/console/sign-in", {"token": TOKEN, "back": back})

    assert (response.status, response.headers["location"]) == (303, "/console/")


def test_forms_of_other_sites_are_refused_even_with_a_session(console: ServerProcess) -> None:
    session = cookie(console)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        response, _ = ask(console, "/console/models/cnn/1/delete", {}, Cookie=session, **headers)
        assert response.status == 403
    assert ask(console, "/console/models/cnn")[0].status == 200


def test_whoever_signed_in_profiles_again_cancels_and_deletes(
    console: ServerProcess, tmp_path: Path
) -> None:
    session = cookie(console)
    other = small_cnn(tmp_path / "other.onnx", branches=2)
    with console.client() as client:
        client.register("doomed", other, wait=True)
    _, body = ask(console, "/console/models/doomed", Cookie=session)
    assert "Delete this version" in body
    assert "Profile again" in body

    response, _ = ask(console, "/console/models/doomed/1/profile", {}, Cookie=session)
    job = response.headers["location"]
    assert re.fullmatch(r"/console/jobs/[0-9a-f]+", job)
    response, _ = ask(console, f"{job}/cancel", {}, Cookie=session)
    assert response.status in (303, 409), "409: it was ready already"
    response, _ = ask(console, "/console/models/doomed/1/delete", {}, Cookie=session)
    assert response.status == 303
    assert ask(console, "/console/models/doomed")[0].status == 404

    response, _ = ask(console, "/console/sign-out", {}, Cookie=session)
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert ask(console, "/console/models/cnn/1/delete", {}, Cookie=session)[0].status == 403
