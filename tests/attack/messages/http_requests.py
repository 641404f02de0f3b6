"""One request to the HTTP port as bytes, and how it is answered."""

import html
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

DEADLINE_S = 30.0
LONGEST_ERROR = 16_000  # body of an answer that is no 200, in bytes


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Bytes of a request, and what must come of them; status 0: the connection is closed."""

    data: bytes
    status: int
    words: Sequence[str] = ()
    is_of_protocol: bool = False  # an answer that is no 200 is JSON with an error


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came; status 0: nothing but the end of the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def get(path: str, status: int, words: Sequence[str] = (), **headers: str) -> HttpRequest:
    """Make a GET; the path goes out as it is."""
    return HttpRequest(_head("GET", path, headers), status, words)


def post(
    path: str, body: bytes | str, status: int, words: Sequence[str] = (), **headers: str
) -> HttpRequest:
    """Make a POST, with the right length unless ``headers`` say another."""
    data = body.encode() if isinstance(body, str) else body
    told = {"Content-Length": str(len(data)), **headers}
    return HttpRequest(_head("POST", path, told) + data, status, words)


def of_protocol(request: HttpRequest) -> HttpRequest:
    """Say that REST answers a request, not the port below it."""
    return replace(request, is_of_protocol=True)


def _head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    text = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""])
    return text.encode("utf-8", "surrogateescape")


def answered(port: int, data: bytes, source: str = "127.0.0.1") -> HttpAnswer:
    """Send bytes over a connection of their own, from one of this machine's addresses."""
    received, address = bytearray(), ("127.0.0.1", port)
    with socket.create_connection(address, DEADLINE_S, (source, 0)) as connection:
        connection.settimeout(DEADLINE_S)
        try:
            connection.sendall(data)
            while more := connection.recv(1 << 16):
                received += more
        except (ConnectionResetError, BrokenPipeError):
            pass  # what was answered before is what counts
    return _parsed(bytes(received))


def answered_with(token: str, port: int, request: HttpRequest, *source: str) -> HttpAnswer:
    first, _, after = request.data.partition(b"\r\n")
    data = first + f"\r\nAuthorization: Bearer {token}\r\n".encode() + after
    return answered(port, data, *source)


def _parsed(received: bytes) -> HttpAnswer:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    if not first:
        return HttpAnswer(0, {}, b"")
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        assert name.lower() not in headers, f"{name} is said twice"
        headers[name.lower()] = value
    return HttpAnswer(int(first.split(" ")[1]), headers, body)


def check(answer: HttpAnswer, request: HttpRequest) -> None:
    """Raise AssertionError unless an answer is as the table says, and nothing else is in it."""
    text = answer.body.decode()
    assert answer.status == request.status, text[:1000]
    is_error = answer.headers.get("content-type") == "application/json" and answer.status != 200
    said = str(json.loads(text).get("error", "")) if is_error else ""
    for words in request.words:
        assert words in text or words in html.unescape(text) or words in said
    if answer.status != 200:
        assert text.replace("\n", "").isprintable()
        assert len(answer.body) <= LONGEST_ERROR
    if request.is_of_protocol and answer.status != 200:
        assert is_error
        assert set(json.loads(text)) == {"error"}
        if re.match(rb"POST \S+/infer ", request.data):
            assert answer.headers["braid-request-id"]
    assert "<script>" not in text.lower()
    assert "set-cookie" not in answer.headers
    assert "Traceback" not in text
