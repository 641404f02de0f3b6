"""One call of gRPC, and how it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as oip

from braid_client.wire import inference_pb2

BRAID, ADMIN = "/braid.v1.InferenceService/", "/braid.v1.AdminService/"
OIP = "/inference.GRPCInferenceService/"
OPEN = (
    *("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"),
    *(f"{OIP}ServerLive", f"{OIP}ServerReady"),
)
"""Methods that take no token, and 4 KiB."""
UNARY_STREAM = (f"{ADMIN}WatchJob", "/grpc.health.v1.Health/Watch")
STREAM_UNARY = (f"{ADMIN}RegisterModel",)
STREAM_STREAM = (
    *(f"{BRAID}InferStream", f"{OIP}ModelStreamInfer"),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
IN_STREAM = "error in the stream"
"""Status of an answer of ModelStreamInfer that carries a message instead of a code."""

DEADLINE_S = 30.0
LONGEST_MESSAGE = 4000  # of a status, in characters


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """What is sent to a method, and what must come of it."""

    method: str
    sent: Sequence[Message | bytes]
    status: str
    words: Sequence[str] = ()
    metadata: Sequence[tuple[str, str | bytes]] = ()
    goes_on: bool = False
    """A stream of two: "bad" is refused, "right" answered all the same."""


class End(NamedTuple):
    """Status and message of a call, or those of the first error in its answers."""

    status: str
    message: str
    has_request_id: bool = True


def check(channel: grpc.Channel, call: GrpcCall, metadata: Sequence[tuple[str, str]]) -> None:
    """Make a call; raises AssertionError unless it ends as the table says."""
    end = ended(channel, call, metadata)
    assert end.status == call.status, end.message
    for words in call.words:
        assert words in end.message
    assert end.message.isprintable()
    assert len(end.message) <= LONGEST_MESSAGE
    if not call.method.startswith("/grpc."):  # those of other libraries
        assert end.has_request_id or "larger than max" in end.message  # which no method has seen


def ended(channel: grpc.Channel, call: GrpcCall, metadata: Sequence[tuple[str, str]]) -> End:
    data = [each if isinstance(each, bytes) else each.SerializeToString() for each in call.sent]
    streams_in = call.method in (*STREAM_UNARY, *STREAM_STREAM)
    streams_out = call.method in (*UNARY_STREAM, *STREAM_STREAM)
    kind = "_".join("stream" if each else "unary" for each in (streams_in, streams_out))
    begin: Any = getattr(channel, kind)(call.method)
    sent: Any = iter(data) if streams_in else data[0]
    try:
        answers = begin(sent, timeout=DEADLINE_S, metadata=(*metadata, *call.metadata))
        if call.method in STREAM_STREAM:
            return _of_answers(call, answers)
        if streams_out:
            return _of_first_answer(answers)
    except grpc.RpcError as error:
        told: Any = error
        has_request_id = "braid-request-id" in dict(told.trailing_metadata() or ())
        return End(told.code().name, told.details() or "", has_request_id)
    return End("OK", "")


def _of_first_answer(answers: Any) -> End:
    next(answers, None)
    if answers.is_active():
        answers.cancel()
        return End("OK", "")
    return End(answers.code().name, answers.details() or "")


def _of_answers(call: GrpcCall, answers: Any) -> End:
    ends = [_of_answer(call.method, data) for data in answers]
    if call.goes_on:
        pairs = [(request_id, status == "OK") for request_id, status, _ in ends]
        if call.method == f"{BRAID}InferStream":  # its answers come as they are ready
            pairs.sort(key=lambda pair: pair[1])
        assert pairs == [(_id_of(call.sent[0]), False), ("right", True)]
    refused = next((End(status, words) for _, status, words in ends if status != "OK"), None)
    return refused or End(answers.code().name, answers.details() or "")


def _id_of(message: Any) -> str:
    return str(message.id if isinstance(message, oip.ModelInferRequest) else message.request_id)


def _of_answer(method: str, data: bytes) -> tuple[str, str, str]:
    """Id, status and message of one answer in a stream."""
    if method == f"{OIP}ModelStreamInfer":
        other = oip.ModelStreamInferResponse.FromString(data)
        status = IN_STREAM if other.error_message else "OK"
        return other.infer_response.id, status, other.error_message
    if method == f"{BRAID}InferStream":
        answer = inference_pb2.InferStreamResponse.FromString(data)
        if answer.HasField("error"):
            codes = {code.value[0]: code.name for code in grpc.StatusCode}
            return answer.request_id, codes[answer.error.code], answer.error.message
        return answer.request_id, "OK", ""
    return "", "OK", ""
