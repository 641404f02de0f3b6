"""A real Chromium registers files and tries models: images, JSON, refusals."""

import itertools
import json
import re
import struct
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from tests.models.external_data import in_several_files
from tests.models.small import in_text, small_cnn, unknown_operator, written
from tests.service.console.browser import Browser, address
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("no_complaints")]

CLASSES, SIDE = 12, 20
TOKENS = {"admin": "the-token-of-an-admin", "infer": "the-token-of-a-caller"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("registering") / "store").start() as server:
        yield server


def classifier(path: Path) -> Path:
    """image [batch, 3, SIDE, SIDE] -> logits [batch, CLASSES]."""
    rng = np.random.default_rng(3)
    weights = {
        "kernel": rng.normal(0, 0.3, (24, 3, 5, 5)).astype(np.float32),
        "matrix": rng.normal(0, 1, (24, CLASSES)).astype(np.float32),
    }
    text = f"""(float[batch, 3, {SIDE}, {SIDE}] image) => (float[batch, {CLASSES}] logits) {{
      c = Conv<strides=[2, 2]>(image, kernel)  r = Relu(c)  p = GlobalAveragePool(r)
      f = Flatten(p)  logits = MatMul(f, matrix) }}"""
    return written(path, text, **weights)


def png(path: Path, pixels: np.ndarray) -> Path:
    """Write pixels, UINT8 [height, width, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    return path


def set_fields(browser: Browser, scope: str, **values: str) -> None:
    """Fill fields, as somebody who types does."""
    for name, value in values.items():
        browser.run(
            f"(() => {{const e = document.querySelector({scope!r}).querySelector('[name={name}]');"
            f"e.value = {json.dumps(value)};"
            "e.dispatchEvent(new Event('change', {bubbles: true}))})()"
        )


def send_model(browser: Browser, server: ServerProcess, *files: Path, **fields: str) -> None:
    browser.open(address(server, "register"))
    browser.choose("#files", *files)
    set_fields(browser, "#register", **fields)
    browser.run("document.querySelector('#register button').click()")


def wait_for_job(browser: Browser, server: ServerProcess) -> None:
    """Wait until the page of a job is there and the job has ended, however busy the machine is."""
    browser.until("location.pathname.startsWith('/console/jobs/')")
    job = browser.run("location.pathname").rpartition("/")[2]
    with server.client() as client:
        for _ in client.watch_job(job):
            pass


def run_model(browser: Browser) -> None:
    """Send the form, and wait for the answer."""
    browser.run("document.querySelector('#answer').replaceChildren()")
    browser.run("document.querySelector('#try-form button').click()")
    browser.until("!!document.querySelector('#answer table, #try-problem:not([hidden])')")
    assert browser.run("document.querySelector('#try-problem').hidden"), browser.text


def rows(browser: Browser, caption: str) -> list[list[str]]:
    """Cells of the table with a caption that begins so."""
    found: list[list[str]] = browser.run(
        "[...document.querySelectorAll('#answer table')].filter(t => t.caption.textContent"
        f".startsWith({json.dumps(caption)})).flatMap(t => [...t.tBodies[0].rows].map("
        "r => [...r.cells].map(c => c.textContent)))"
    )
    return found


def test_a_file_is_registered_and_tried_with_an_image(
    server: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    model = classifier(tmp_path / "my net.onnx")
    pixels = np.random.default_rng(5).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    labels = [f"label {number}" for number in range(CLASSES)]
    (tmp_path / "labels.txt").write_text("\n".join(labels))

    browser.open(address(server))
    browser.follow("Register a model")
    browser.choose("#files", model)
    assert browser.run("document.querySelector('#name').value") == "my-net"
    set_fields(browser, "#register", batch_sizes="1, 4", planner="greedy")
    browser.run("document.querySelector('#register button').click()")
    wait_for_job(browser, server)
    browser.until("document.querySelector('progress')?.value === 1")
    done = "[...document.querySelectorAll('.sizes .done')].map(step => step.textContent)"
    assert browser.run(done) == ["1", "4"]
    browser.follow("my-net")
    browser.run("document.querySelector('.try').open = true")
    browser.choose("[name=image]", png(tmp_path / "image.png", pixels))
    browser.choose("#labels", tmp_path / "labels.txt")
    run_model(browser)

    scaled = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    (expected,) = onnxruntime.InferenceSession(model).run(
        None, {"image": scaled.transpose(2, 0, 1)[None].astype(np.float32)}
    )
    powers = np.exp(expected[0] - expected[0].max())
    order = np.argsort(-expected[0])[:5]
    shown = rows(browser, "Largest of logits")
    assert [row[:2] for row in shown] == [[str(at), labels[at]] for at in order]
    np.testing.assert_allclose([float(row[2]) for row in shown], expected[0, order], rtol=1e-4)
    np.testing.assert_allclose(
        [float(row[3].rstrip(" %")) for row in shown], 100 * (powers / powers.sum())[order],
        atol=0.01,
    )  # fmt: skip
    ((name, kind, least, mean, largest, first),) = rows(browser, "Outputs")
    assert (name, kind) == ("logits", f"FP32[1, {CLASSES}]")
    summary = [expected.min(), expected.mean(), expected.max()]
    np.testing.assert_allclose([float(least), float(mean), float(largest)], summary, rtol=1e-4)
    assert float(first.split(",")[0]) == pytest.approx(float(expected[0, 0]), rel=1e-4)
    assert "Answered in" in browser.run("document.querySelector('#answer p').textContent")


def narrow(path: Path, element: int) -> Path:
    """x [n, 4] of an element type -> y, the same."""
    tensor = f"{in_text(element)}[n, 4]"
    return written(path, f"({tensor} x) => ({tensor} y) {{ y = Identity(x) }}")


@pytest.mark.parametrize(
    ("element", "given", "shown"),
    [
        (TensorProto.FLOAT16, "[[0.1, -65504, 6e-8, 0]]", "0.0999756, -65504, 5.96046e-8, 0"),
        (TensorProto.INT64, "[9007199254740993, -1, 0, 7]", "9007200000000000, -1, 0, 7"),
        (TensorProto.BOOL, "[true, false, true, true]", "1, 0, 1, 1"),
        (TensorProto.STRING, '["a", "ä", "", "<b>"]', "a, ä, , <b>"),
    ],
)
def test_json_goes_in_and_every_type_comes_out(
    server: ServerProcess, browser: Browser, tmp_path: Path, element: int, given: str, shown: str
) -> None:
    name = f"type-{element}"
    with server.client() as client:
        client.register(name, narrow(tmp_path / "x.onnx", element), batch_sizes=[1], wait=True)
    browser.open(address(server, f"models/{name}"))
    browser.run("document.querySelector('.try').open = true")
    set_fields(browser, "#try-form", source="json", json=given)
    run_model(browser)
    assert rows(browser, "Outputs")[0][-1] == shown

    set_fields(browser, "#try-form", source="numbers", shape="3, 4", fill="ones")
    run_model(browser)
    assert rows(browser, "Outputs")[0][1].endswith("[3, 4]")
    if element != TensorProto.STRING:
        assert rows(browser, "Outputs")[0][2:5] == ["1", "1", "1"]


def test_a_model_in_several_files_is_the_registration_of_the_client(
    server: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    model = in_several_files(tmp_path, "parts.onnx", "parts.onnx.data", "more.bin")
    files = [tmp_path / "more.bin", model, tmp_path / "parts.onnx.data"]
    send_model(browser, server, *files, batch_sizes="1", precision="fp32")
    wait_for_job(browser, server)

    with server.client() as client:
        again = client.register("parts", model, batch_sizes=[1])
    assert (again.version, again.already_registered) == ("1", True)


def test_data_may_be_named_like_a_model(
    server: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    model = in_several_files(tmp_path, "net.onnx", "a_part.onnx")
    send_model(browser, server, model, tmp_path / "a_part.onnx", batch_sizes="1", precision="fp32")
    wait_for_job(browser, server)

    with server.client() as client:
        assert client.register("net", model, batch_sizes=[1]).already_registered


def refusal(browser: Browser) -> str:
    browser.until("!document.querySelector('#problem').hidden")
    return str(browser.run("document.querySelector('#problem').textContent"))


def test_what_is_refused_says_why(server: ServerProcess, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "net.pth").write_bytes(b"\x80\x02" + bytes(100))
    (tmp_path / "large.gguf").write_bytes(b"GGUF" + bytes(70 << 20))
    good = small_cnn(tmp_path / "good.onnx")
    other = small_cnn(tmp_path / "other.onnx")
    cases: list[tuple[list[Path], dict[str, str], str]] = [
        ([tmp_path / "net.pth"], {}, "not a model: the file looks like a pickle"),
        ([tmp_path / "large.gguf"], {}, "not a model: the file looks like a GGUF file"),
        ([good, other], {}, "several files are one model NAME.onnx and its external data"),
        ([good], {"name": "no name"}, "model name 'no name' is not"),
        ([good], {"batch_sizes": "one"}, "batch sizes: 'one' are not whole numbers"),
        ([good], {"batch_sizes": "0"}, "batch sizes lie between 1 and"),
        ([good], {"input_shapes": "1,3"}, "the input shape '1,3' is not NAME=N,N"),
        ([good], {"lengths": "few"}, "lengths are none or integers between commas"),
    ]
    for files, fields, words in cases:
        send_model(browser, server, *files, **fields)
        assert words in refusal(browser)
        browser.run("1")
        browser.complaints.clear()  # the browser itself says that a request is refused

    send_model(browser, server, unknown_operator(tmp_path / "bad.onnx"))
    wait_for_job(browser, server)
    browser.until("!!document.querySelector('main .failure')")
    failure = browser.run("document.querySelector('main .failure').textContent")
    assert failure.startswith("This registration has failed. the model cannot be imported")
    assert "Gyre" in failure


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with tokens and one model."""
    folder = tmp_path_factory.mktemp("guarded")
    for role, token in TOKENS.items():
        (folder / role).write_text(f"{token}\n")
    with ServerProcess(
        folder / "store",
        BRAID_ADMIN_TOKEN_FILE=str(folder / "admin"),
        BRAID_INFER_TOKEN_FILE=str(folder / "infer"),
    ).start() as server:
        yield server.register({"cnn": small_cnn(folder / "cnn.onnx")}, planner="")


def sent(server: ServerProcess, path: str, body: bytes, **headers: Any) -> tuple[int, Any]:
    answer = call(server, f"/console/{path}", body, **headers)
    return answer.status, answer.json


def form_of(model: Path, **fields: object) -> bytes:
    data = model.read_bytes()
    files = [{"name": model.name, "size": len(data)}]
    return json.dumps({"name": "new", "files": files, **fields}).encode() + b"\n" + data


TRY = "models/cnn/versions/1/infer"
ZEROS = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": [0] * 768}]}
).encode()


def test_admins_register_and_callers_with_a_token_try(
    guarded: ServerProcess, tmp_path: Path
) -> None:
    form = form_of(small_cnn(tmp_path / "new.onnx", branches=2))
    as_caller, as_admin = (
        {"Authorization": f"Bearer {TOKENS[role]}"} for role in ("infer", "admin")
    )
    assert sent(guarded, "register", form)[0] == 401
    assert sent(guarded, TRY, ZEROS)[0] == 401
    status, answer = sent(guarded, "register", form, **as_caller)
    assert (status, "the call needs one for admins" in answer["error"]) == (403, True)
    assert sent(guarded, TRY, ZEROS, **as_caller)[0] == 200
    assert sent(guarded, "register", form, Cookie="braid-console=guess")[0] == 401
    with guarded.client() as client:
        assert [model.name for model in client.models()] == ["cnn"]

    assert sent(guarded, "register", form, **as_admin)[0] == 200


def test_pages_of_other_sites_register_and_try_nothing(
    guarded: ServerProcess, server: ServerProcess, tmp_path: Path
) -> None:
    form = form_of(small_cnn(tmp_path / "evil.onnx"), name="evil")
    for path, body in (("register", form), (TRY, ZEROS)):
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            status, answer = sent(server, path, body, **headers)
            assert (status, answer["error"]) == (
                403,
                "this request comes from a page of another site",
            )
    with server.client() as client:
        assert "evil" not in [model.name for model in client.models()]


def test_one_who_signed_in_registers_and_tries_in_a_browser(
    guarded: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    browser.open(address(guarded, "register"))
    assert "Model file" not in browser.text
    browser.complaints.clear()  # the browser itself says that the page is refused
    browser.run(f"document.querySelector('input[name=token]').value = {TOKENS['admin']!r}")
    browser.run("window.stale = true; document.querySelector('main form').requestSubmit()")
    browser.until("!window.stale && location.pathname === '/console/register'")
    send_model(browser, guarded, small_cnn(tmp_path / "mine.onnx", branches=4), batch_sizes="1")
    wait_for_job(browser, guarded)

    browser.open(address(guarded, "models/cnn"))
    browser.run("document.querySelector('.try').open = true")
    set_fields(browser, "#try-form", source="numbers")
    run_model(browser)
    assert rows(browser, "Outputs")[0][1] == "FP32[1, 4, 16, 16]"


def peak_mib(server: ServerProcess) -> float:
    """Most memory that the front end ever held."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def test_a_large_file_is_never_in_memory_as_a_whole(guarded: ServerProcess, tmp_path: Path) -> None:
    size = 256 << 20
    text = b"\x32" + bytes([*(128 | size >> shift & 127 for shift in (0, 7, 14, 21)), size >> 28])
    model = tmp_path / "large.onnx"
    with model.open("wb") as file:
        file.write(text)
        file.truncate(len(text) + size)  # a doc_string, and no graph
    files = [{"name": model.name, "size": model.stat().st_size}]
    line = json.dumps({"name": "large", "files": files}).encode() + b"\n"

    before = peak_mib(guarded)
    connection = HTTPConnection(guarded.http_address, timeout=120)
    with model.open("rb") as file:
        headers = {
            "Authorization": f"Bearer {TOKENS['admin']}",
            "Content-Length": str(len(line) + model.stat().st_size),
        }
        body = itertools.chain([line], iter(lambda: file.read(1 << 20), b""))
        connection.request("POST", "/console/register", body, headers)
        assert connection.getresponse().status == 200
    connection.close()
    assert peak_mib(guarded) - before < 64
