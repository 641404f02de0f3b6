"""Each hostile request to the HTTP port gets the status and the words that its table says."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator

import pytest

from braid.server.servicers.rest.operations import OPERATIONS
from tests.attack.messages import console, parts, rest
from tests.attack.messages.http_requests import (
    LONGEST_ERROR,
    HttpAnswer,
    HttpRequest,
    answered,
    post,
)
from tests.attack.messages.tensors import MISTAKES, request_of
from tests.attack.target import TOKEN, Target

pytestmark = pytest.mark.ci

ELSEWHERE = "127.0.1.3"
"""Address that has sent no wrong token."""

REQUESTS: dict[str, HttpRequest] = {
    **dict(rest.requests()),
    **dict(console.requests()),
    **dict(parts.requests()),
    **{f"REST: {name}": request_of(mistake) for name, mistake in MISTAKES.items()},
}


@pytest.fixture(scope="module", autouse=True)
def _sound(target: Target) -> Iterator[None]:
    yield
    target.check()


def ask(target: Target, request: HttpRequest, *source: str) -> HttpAnswer:
    """Send a request with the token."""
    first, _, rest_of_it = request.data.partition(b"\r\n")
    data = first + f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() + rest_of_it
    return answered(target.server.http_port, data, *source)


def _said(answer: HttpAnswer) -> str:
    is_json = answer.headers.get("content-type") == "application/json"
    return str(json.loads(answer.body).get("error", "")) if is_json else ""


def check(answer: HttpAnswer, request: HttpRequest) -> None:
    """Raise AssertionError unless an answer is as the table says, and nothing else is in it."""
    text = answer.body.decode()
    assert answer.status == request.status, text[:1000]
    for words in request.words:
        assert words in text or words in html.unescape(text) or words in _said(answer)
    if answer.status != 200:
        assert text.replace("\n", "").isprintable()
        assert len(answer.body) <= LONGEST_ERROR
    assert "<script>" not in text.lower()
    assert "set-cookie" not in answer.headers
    assert "Traceback" not in text


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_as_its_table_says(name: str, target: Target) -> None:
    check(ask(target, REQUESTS[name]), REQUESTS[name])


def test_those_who_signed_in_are_refused_as_the_table_says(target: Target) -> None:
    signed = ask(target, post("/console/sign-in", f"token={TOKEN}", 303), ELSEWHERE)
    cookie = signed.headers["set-cookie"].partition(";")[0]

    for _, request in console.signed_in(cookie):
        check(ask(target, request), request)


def test_every_path_of_the_protocol_that_takes_a_body_has_cases() -> None:
    asked = [request.data.split(b" ")[1].decode() for request in REQUESTS.values()]

    for operation in OPERATIONS:
        path = re.compile(re.sub(r"\{\w+\}", "[^/]+", operation.path))
        if operation.read is not None or operation.rpc == "ModelInfer":
            assert any(path.fullmatch(each) for each in asked), operation.path
