"""Each hostile message to gRPC gets the status and the words that its table says."""

from collections.abc import Iterator

import grpc
import pytest

from campaigns.noise import methods_of
from tests.attack.messages import admin, inference, open_inference, parts
from tests.attack.messages.grpc_calls import OPEN, GrpcCall, check
from tests.attack.target import Target
from tests.attack.test_bad_requests import CALLS as BAD_CALLS
from tests.attack.test_bad_requests import UPLOADS

pytestmark = pytest.mark.ci

CALLS: dict[str, GrpcCall] = {
    **dict(inference.calls()),
    **dict(open_inference.calls()),
    **dict(admin.calls()),
    **dict(parts.calls()),
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
    check(channel, CALLS[name], target.metadata)


@pytest.mark.parametrize("method", parts.METHODS)
def test_who_may_not_call_hears_that_first(method: str, channel: grpc.Channel) -> None:
    status = "INVALID_ARGUMENT" if method in OPEN else "UNAUTHENTICATED"

    check(channel, GrpcCall(method, [parts.NOISE], status), ())


def test_every_method_has_cases(target: Target) -> None:
    there = {method.path for method in methods_of(target.address, target.metadata)}

    assert there == {
        call.method for call in (*CALLS.values(), *BAD_CALLS.values(), *UPLOADS.values())
    }
