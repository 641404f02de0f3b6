"""Calls of ``braid.v1.InferenceService`` that are no request, or a strange one that is right."""

from collections.abc import Iterator, Sequence

from google.protobuf.message import Message

from tests.attack.messages.doors import INVALID, MISSING, RIGHT, Bad, braid
from tests.attack.messages.grpc_calls import BRAID, GrpcCall

INFER, STREAM = f"{BRAID}Infer", f"{BRAID}InferStream"
DECODE = ("cannot be decoded",)


def calls() -> Iterator[tuple[str, GrpcCall]]:
    longest = braid(Bad([], parameters={"timeout": (1 << 63) - 1}))
    cases: Sequence[tuple[str, str, Sequence[Message | bytes], str, Sequence[str]]] = (
        ("the longest timeout", INFER, [longest], "OK", ()),
        ("the longest timeout in a stream", STREAM, [longest], "OK", ()),
        ("no bytes", INFER, [b""], MISSING, ("no model named ''",)),
        ("half a message", INFER, [b"\x0a\x7f"], INVALID, DECODE),
        ("a group without end", INFER, [b"\x0b" * 5000], INVALID, DECODE),
        ("a name that is no text", INFER, [b"\x0a\x02\xff\xfe"], INVALID, DECODE),
        ("an empty stream", STREAM, [], "OK", ()),
        ("noise in a stream", STREAM, [braid(RIGHT), b"\xff"], INVALID, DECODE),
    )
    for what, method, sent, status, words in cases:
        yield what, GrpcCall(method, sent, status, words)
