"""Blocking calls with requests built once, by the stubs of gRPC's C core.

A call returns when the answer's bytes have arrived; what it returns says whether they are right,
which is not part of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.peers.load.tensors import DATATYPES, Question

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
CHANNEL_OPTIONS = (
    # Channels of one process otherwise share a connection; clients of their own do not.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class CallFailed(Exception):
    """A request that was not answered; the message is a status code."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's model, and how it is asked."""

    address: str
    model: str
    timeout_s: float = 30.0


Check = Callable[[], bool]
Call = Callable[[int], Check]
"""Sends question n modulo their number; returns a function that says if the answer is right."""


@contextmanager
def connected(target: Target, questions: Sequence[Question]) -> Iterator[Call]:
    """A call over a connection of its own.

    Raises:
        CallFailed: there is no connection in time.
    """
    with grpc.insecure_channel(target.address, options=CHANNEL_OPTIONS) as channel:
        try:
            grpc.channel_ready_future(channel).result(target.timeout_s)
        except grpc.FutureTimeoutError as error:
            raise CallFailed("no connection") from error
        yield _call(channel, target, questions)


def _call(channel: grpc.Channel, target: Target, questions: Sequence[Question]) -> Call:
    infer: Callable[..., bytes] = channel.unary_unary(MODEL_INFER)
    messages = [message(target.model, question) for question in questions]

    def call(number: int) -> Check:
        number %= len(messages)
        try:
            answer = infer(messages[number], timeout=target.timeout_s)
        except grpc.RpcError as error:
            raise CallFailed(error.code().name) from error
        return lambda: is_right(questions[number], answer)

    return call


def message(model: str, question: Question) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in question.inputs.items():
        request.inputs.add(name=name, datatype=DATATYPES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def is_right(question: Question, answer: bytes) -> bool:
    response = service_pb2.ModelInferResponse.FromString(answer)
    names = [output.name for output in response.outputs]
    if response.raw_output_contents:
        parts = [np.frombuffer(raw, np.float32) for raw in response.raw_output_contents]
    else:
        parts = [np.array(o.contents.fp32_contents, np.float32) for o in response.outputs]
    if len(parts) != len(names) or (set(names) != set(question.outputs) and len(names) > 1):
        return False
    by_name = dict(zip(names, parts, strict=True))
    return question.is_answer([by_name.get(name, parts[0]) for name in question.outputs])
