"""Each bad request is refused through every door as its table says, and leaves nothing behind."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from braid_client.wire import admin_pb2, admin_pb2_grpc
from tests.attack.messages import admin, rest
from tests.attack.messages.bad_requests import BAD
from tests.attack.messages.doors import Inexpressible, calls
from tests.attack.messages.doors import rest as by_rest
from tests.attack.messages.grpc_calls import GrpcCall, check
from tests.attack.messages.http_requests import HttpRequest, answered_with
from tests.attack.messages.http_requests import check as check_answer
from tests.attack.messages.open_inference import (
    LOADS,
    REGIONS,
    load_call,
    load_request,
    region_call,
    region_request,
)
from tests.attack.target import TOKEN, Target


def _rest_requests() -> Iterator[tuple[str, HttpRequest]]:
    for what, bad in BAD.items():
        with suppress(Inexpressible):
            yield f"REST: {what}", by_rest(bad)
    for what, (parameters, words) in LOADS.items():
        with suppress(Inexpressible):
            yield f"load: {what}", load_request(parameters, words)
    for what, region in REGIONS.items():
        with suppress(Inexpressible):
            yield f"region: {what}", region_request(region)
    yield from rest.requests()


CALLS: dict[str, GrpcCall] = {
    **{
        f"{call.method.rpartition('/')[2]}: {what}": call
        for what, bad in BAD.items()
        for call in calls(bad)
    },
    **{f"region: {what}": region_call(region) for what, region in REGIONS.items()},
}
UPLOADS: dict[str, GrpcCall] = {
    **{f"load: {what}": load_call(*load) for what, load in LOADS.items()},
    **dict(admin.uploads()),
}
REQUESTS: dict[str, HttpRequest] = dict(_rest_requests())


@pytest.fixture(scope="module")
def attacked(target: Target) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target.address) as made:
        yield made
    target.check()


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_is_refused(name: str, target: Target, attacked: grpc.Channel) -> None:
    check(attacked, CALLS[name], target.metadata)


@pytest.mark.parametrize("name", UPLOADS)
def test_a_bad_upload_is_refused_and_leaves_nothing(
    name: str, target: Target, attacked: grpc.Channel
) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(attacked)

    def jobs() -> int:
        asked = admin_pb2.ListJobsRequest(limit=1000)
        return len(stub.ListJobs(asked, metadata=target.metadata).jobs)

    before = jobs()
    check(attacked, UPLOADS[name], target.metadata)

    assert list((target.server.store / "uploads").iterdir()) == []
    assert jobs() == before


@pytest.mark.parametrize("name", REQUESTS)
def test_a_bad_request_of_http_is_refused(name: str, target: Target) -> None:
    check_answer(answered_with(TOKEN, target.server.http_port, REQUESTS[name]), REQUESTS[name])


def test_each_bad_request_has_a_door() -> None:
    doors = Counter(name.partition(": ")[2] for name in (*CALLS, *REQUESTS))

    assert [what for what in BAD if not doors[what]] == []
