"""Names from outside stay data: in logs, pages, metrics, files and headers."""

import re
from html.parser import HTMLParser
from pathlib import Path

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.attack.messages.grpc_calls import GrpcCall, ended
from tests.attack.messages.http_requests import HttpAnswer, answered, get
from tests.attack.messages.names import MARK, NAMES, messages, model, requests
from tests.attack.target import TOKEN, Target

pytestmark = pytest.mark.ci

SOURCE = "127.0.1.2"
"""Address of its own, as it sends wrong tokens."""

ADMIN = {"Authorization": f"Bearer {TOKEN}"}

EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +braid\.[a-z_.0-9]+  |  \| ")
"""Beginning of each line of the log."""


class Tags(HTMLParser):
    """Collects the markup of a page that has MARK in it, but for values of harmless attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at a tag and the names of its attributes."""
        for name, value in attrs:
            is_code = name.startswith("on") or (value or "").lower().startswith("javascript:")
            if is_code or MARK.lower() in name:
                self.found.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        """Look at what a script contains."""
        if self.lasttag in ("script", "style") and MARK in data:
            self.found.append(data)


def http(target: Target, data: bytes) -> HttpAnswer:
    return answered(target.server.http_port, data, SOURCE)


def check_page(answer: HttpAnswer) -> None:
    """Raise AssertionError if a name became markup or a header."""
    assert MARK not in "".join(answer.headers)
    assert "set-cookie" not in answer.headers or MARK not in answer.headers["set-cookie"]
    text = answer.body.decode()
    if "html" in answer.headers.get("content-type", ""):
        tags = Tags()
        tags.feed(text)
        assert tags.found == []
        assert f"<script>{MARK}" not in text


def check_surroundings(target: Target) -> None:
    """Raise AssertionError if a name became a line of the log, a metric or a file."""
    bad = [line for line in target.server.log.splitlines() if not EVENT.match(line)]
    assert [line for line in bad if MARK in line] == []
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", target.server.log)
    metrics = http(target, get("/metrics", 200, **ADMIN).data).body.decode()
    for family in text_string_to_metric_families(metrics):
        assert MARK.lower() not in family.name.lower()
        for sample in family.samples:
            assert MARK not in "".join(sample.labels.values())
    parent = target.server.store.parent
    assert [path for path in parent.rglob("*") if MARK in path.name] == []
    assert [path for path in Path("/dev/shm").iterdir() if MARK in path.name] == []


def test_names_in_messages_stay_data(target: Target) -> None:
    with grpc.insecure_channel(target.address) as channel:
        for name in NAMES:
            for method, message in messages(name):
                status, said, _ = ended(channel, GrpcCall(method, [message], ""), target.metadata)
                assert status in ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"), said
                assert said.isprintable()

    check_surroundings(target)


def test_names_in_requests_stay_data(target: Target) -> None:
    for name in NAMES:
        for data in requests(name):
            answer = http(target, data)
            assert answer.status not in (0, 500), data[:200]
            check_page(answer)

    check_surroundings(target)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 6, 7])
def test_names_in_a_model_stay_data(number: int, target: Target, tmp_path: Path) -> None:
    """The model serves under its own names, or is refused: both are right."""
    name = NAMES[number]
    file = model(name, tmp_path / "model.onnx")
    target.server.register({"named": file})

    with target.admin() as client:
        x = np.array([[-1, 2, 3]], np.float32)
        answer = client.infer("named", {f"x{name}": x})
        assert np.array_equal(answer.outputs[f"y{name}"], 2 * np.maximum(x, 0))
        pages = (
            "models/named",
            *(f"schedules/named/1/1{end}" for end in ("", "/svg", "/json", "/perfetto")),
        )
        for page in (*pages, "", "jobs"):
            check_page(http(target, get(f"/console/{page}", 200, **ADMIN).data))
        for path in ("", "/config"):
            data = get(f"/v2/models/named{path}", 200, **ADMIN).data
            check_page(http(target, data))
        client.delete("named")

    check_surroundings(target)
