"""Each hostile message to gRPC gets the status and the words that its table says."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from campaigns.noise import methods_of
from tests.attack.messages import admin, inference, open_inference, parts
from tests.attack.messages.grpc_calls import LONGEST_MESSAGE, GrpcCall, ended
from tests.attack.messages.tensors import MISTAKES, calls_of
from tests.attack.target import Target

pytestmark = pytest.mark.ci

CALLS: dict[str, GrpcCall] = {
    **dict(inference.calls()),
    **dict(open_inference.calls()),
    **dict(admin.calls()),
    **dict(parts.calls()),
    **{
        f"{call.method.rpartition('/')[2]}: {name}": call
        for name, mistake in MISTAKES.items()
        for call in calls_of(mistake)
    },
}


@pytest.fixture(scope="module")
def channel(target: Target) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target.address) as made:
        yield made
    target.check()


@pytest.mark.parametrize("name", CALLS)
def test_a_message_is_refused_as_its_table_says(
    name: str, target: Target, channel: grpc.Channel
) -> None:
    call = CALLS[name]

    status, message = ended(channel, call, target.metadata)

    assert status == call.status, message
    for words in call.words:
        assert words in message
    assert message.isprintable()
    assert len(message) <= LONGEST_MESSAGE


def test_every_method_has_cases(target: Target) -> None:
    there = {method.path for method in methods_of(target.address, target.metadata)}

    assert there == {call.method for call in CALLS.values()}
