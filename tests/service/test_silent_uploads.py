"""Uploads that stop and callers that vanish keep no places; quiet ones that live may stay."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from braid.core.errors import ResourceExhausted
from braid.server.servicers.uploads import SLOWEST_BYTES_PER_S, IdleTime, caller_of
from braid.server.store.quota import Quota, StoreLimits
from braid_client.wire import admin_pb2, admin_pb2_grpc
from tests.service.server_process import ServerProcess
from tests.service.unread_connections import unread_connections

HEADER = admin_pb2.RegisterModelRequest(header=admin_pb2.RegisterModelHeader(name="m"))
CHUNK = admin_pb2.RegisterModelRequest(chunk=b"x")
FOOTER = admin_pb2.RegisterModelRequest(footer=admin_pb2.RegisterModelFooter(sha256="no"))


class Caller:
    """What a servicer sees of who calls."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


def caller(peer: str) -> str:
    context: Any = Caller(peer)
    return caller_of(context)


def test_a_caller_is_a_machine_however_often_it_connects() -> None:
    assert caller("ipv4:10.0.0.1:999") == caller("ipv4:10.0.0.1:1000") != caller("ipv4:10.0.0.2:1")
    assert caller("ipv6:%5B::1%5D:999") == caller("ipv6:%5B::1%5D:1000")
    own = caller("ipv6:%5B2001:db8:0:7::1%5D:999")  # a machine may have all addresses of its /64
    assert own == caller("ipv6:%5B2001:db8:0:7:a:b:c:d%5D:1") != caller("ipv6:%5B2001:db8::1%5D:1")
    assert caller("unix:") == "unix"


def test_bytes_restore_time_and_a_single_byte_next_to_none() -> None:
    idle = IdleTime(60)
    idle.arrived(59, 1)
    assert idle.left_s == pytest.approx(1, abs=0.01)
    idle.arrived(1, 10 * SLOWEST_BYTES_PER_S)
    assert idle.left_s == pytest.approx(10, abs=0.01)
    idle.arrived(0, 1 << 30)
    assert idle.left_s == 60


async def upload(address: str, *parts: admin_pb2.RegisterModelRequest) -> grpc.aio.AioRpcError:
    """How an upload ends that stops after some parts.

    The client's library loses the status of an upload that ends while it sends: then once more.
    """
    while True:
        with contextlib.suppress(asyncio.InvalidStateError):
            error = await _upload_once(address, *parts)
            if "execute_batch" not in (error.debug_error_string() or ""):
                return error


async def _upload_once(
    address: str, *parts: admin_pb2.RegisterModelRequest
) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        call = stub.RegisterModel()
        try:
            for part in parts:
                await call.write(part)
            await call
        except grpc.aio.AioRpcError as ended:
            return ended
    raise AssertionError("the upload was taken")


async def test_a_silent_upload_gives_its_place_back(tmp_path: Path) -> None:
    with ServerProcess(
        tmp_path / "store", BRAID_UPLOAD_IDLE_SECONDS="0.2", BRAID_MAX_CONCURRENT_UPLOADS="1"
    ).start() as server:
        ends = [
            await upload(server.address, *parts)
            for parts in ((), (HEADER,), (HEADER, CHUNK), (HEADER, CHUNK))
        ]

    for end in ends:
        assert end.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "the upload stood still for 0.2 s" in (end.details() or "")


@pytest.mark.ci
async def test_one_caller_cannot_take_every_place(tmp_path: Path) -> None:
    with ServerProcess(
        tmp_path / "store", BRAID_MAX_CONCURRENT_UPLOADS="2", BRAID_MAX_CALLER_UPLOADS="1"
    ).start() as server:
        async with unread_connections(server.address, "127.0.0.2") as address:
            silent = asyncio.create_task(upload(address, HEADER, CHUNK))
            while not list((tmp_path / "store" / "uploads").iterdir()):
                assert not silent.done()
                await asyncio.sleep(0)
            async with unread_connections(server.address, "127.0.0.2") as again:
                second = asyncio.create_task(upload(again, HEADER, CHUNK))
                while "kind=ResourceExhausted" not in server.log:
                    assert not second.done()
                    await asyncio.sleep(0.01)
                second.cancel()
            other = await upload(server.address, HEADER, CHUNK, FOOTER)
            silent.cancel()

    assert other.code() is grpc.StatusCode.INVALID_ARGUMENT  # for its footer


def test_a_caller_that_has_its_share_is_told_so(tmp_path: Path) -> None:
    quota = Quota(tmp_path, StoreLimits(max_uploads=3, max_caller_uploads=1))
    quota.begin("a")
    with pytest.raises(ResourceExhausted, match="BRAID_MAX_CALLER_UPLOADS") as refused:
        quota.begin("a")
    assert refused.value.retry_after_s

    for caller_or_server in ("b", ""):
        quota.begin(caller_or_server)
    with pytest.raises(ResourceExhausted, match="3 uploads"):
        quota.begin("")
    quota.end("a")
    quota.begin("a")
