import json

import pytest

from braid.core.errors import ImportLimitExceeded, ModelImportError, UnsupportedOperators
from braid.engine.importer.host.messages import (
    MAX_LINE_BYTES,
    MAX_REASONS,
    Done,
    Failed,
    MalformedMessage,
    Progress,
    decode,
    encode,
)


@pytest.mark.parametrize("message", [Progress(0.25, "checking"), Done()])
def test_messages_survive_the_pipe(message: Progress | Done) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "error",
    [
        ModelImportError("a cycle"),
        ImportLimitExceeded("memory", "memory_bytes"),
        UnsupportedOperators(("Loop (a): no", "If (b): no")),
    ],
)
def test_errors_survive_the_pipe_with_class_and_text(error: ModelImportError) -> None:
    message = decode(encode(Failed(error)))

    assert isinstance(message, Failed)
    assert type(message.error) is type(error)
    assert str(message.error) == str(error)
    assert getattr(message.error, "limit", "") == getattr(error, "limit", "")


def test_a_thousand_reasons_are_cut_to_a_line_that_fits() -> None:
    reasons = tuple(f"Op{i}: " + "x" * 5000 for i in range(1000))

    line = encode(Failed(UnsupportedOperators(reasons)))
    message = decode(line)

    assert len(line) <= MAX_LINE_BYTES
    assert isinstance(message, Failed)
    assert isinstance(message.error, UnsupportedOperators)
    assert message.error.reasons[-1] == f"and {1000 - MAX_REASONS} more"


@pytest.mark.parametrize(
    "body",
    [
        {"progress": 2, "step": "x"},
        {"progress": float("nan"), "step": "x"},
        {"progress": 0.5, "step": 7},
        {"failed": "model", "message": ["a", "list"]},
        {"failed": "unsupported", "reasons": [1, 2]},
        {"failed": "unsupported", "reasons": []},
        {"failed": "unsupported", "reasons": ["x"] * 10_000},
        {"failed": "something else", "message": "x"},
        {"done": "yes"},
        {"surprise": True},
        [],
        17,
    ],
)
def test_anything_else_is_malformed(body: object) -> None:
    with pytest.raises(MalformedMessage):
        decode(json.dumps(body).encode())


@pytest.mark.parametrize(
    "line", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b"0" * MAX_LINE_BYTES * 2]
)
def test_what_is_not_json_is_malformed(line: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(line)


def test_control_characters_do_not_reach_the_servers_log() -> None:
    message = decode(json.dumps({"progress": 0, "step": "a\x1b[31m\nb"}).encode())

    assert message == Progress(0.0, "a [31m b")
