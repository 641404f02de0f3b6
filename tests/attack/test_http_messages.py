"""Each hostile request to the HTTP port gets the status and the words that its table says."""

import re
from collections.abc import Iterator

import pytest

from braid.server.servicers.rest.operations import OPERATIONS
from tests.attack.messages import console, parts
from tests.attack.messages.http_requests import HttpAnswer, HttpRequest, answered_with, check, post
from tests.attack.target import TOKEN, Target
from tests.attack.test_bad_requests import REQUESTS as BAD_REQUESTS

pytestmark = pytest.mark.ci

ELSEWHERE = "127.0.1.3"
"""Address that has sent no wrong token."""

REQUESTS: dict[str, HttpRequest] = {**dict(console.requests()), **dict(parts.requests())}


@pytest.fixture(scope="module", autouse=True)
def _sound(target: Target) -> Iterator[None]:
    yield
    target.check()


def ask(target: Target, request: HttpRequest, *source: str) -> HttpAnswer:
    return answered_with(TOKEN, target.server.http_port, request, *source)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_as_its_table_says(name: str, target: Target) -> None:
    check(ask(target, REQUESTS[name]), REQUESTS[name])


def test_those_who_signed_in_are_refused_as_the_table_says(target: Target) -> None:
    signed = ask(target, post("/console/sign-in", f"token={TOKEN}", 303), ELSEWHERE)
    cookie = signed.headers["set-cookie"].partition(";")[0]

    for _, request in console.signed_in(cookie):
        check(ask(target, request), request)


def test_every_path_of_the_protocol_that_takes_a_body_has_cases() -> None:
    asked = [
        request.data.split(b" ")[1].decode()
        for request in (*REQUESTS.values(), *BAD_REQUESTS.values())
    ]

    for operation in OPERATIONS:
        path = re.compile(re.sub(r"\{\w+\}", "[^/]+", operation.path))
        if operation.read is not None or operation.rpc == "ModelInfer":
            assert any(path.fullmatch(each) for each in asked), operation.path
