"""Real ingress processes in front of an owner that is made up: what crosses, and who ends what."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from core.errors import DeviceOutOfMemory, QueueFull
from engine.worker.options import WorkerEnd
from protos.braid.v1 import inference_pb2 as wire
from server.catalogue import Target
from server.grpc_ports import GrpcPorts
from server.ingress.calls import INFER, INFER_STREAM
from server.ingress.peer import Inference
from server.ingress.processes import IngressProcesses, reserved_port
from server.ingress.replies import ReplyMemory
from server.metrics import Metrics
from server.servicers.protowire import Join
from server.servicers.tensors import Received
from server.settings import Settings
from server.tracing import Sampling

ECHO = "/echo/Echo"
TOKENS = {"admin_token": "a" * 20, "infer_token": "i" * 20}
MESSAGE = wire.InferRequest(model="m", inputs=[wire.Tensor(name="x", data=b"12345678")])


def bearer(letter: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {letter * 20}"),)


class FakeOwner(grpc.GenericRpcHandler):
    """Answers inference with the tensor's bytes when told to; echoes everything else."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        made: dict[str, Any] = {"ingress": 1, "grpc_port": 0, "store": folder / "store"}
        self.settings = Settings(**{**made, **TOKENS, **settings})
        self.ingress = IngressProcesses(self.settings)
        self.ports = GrpcPorts(
            self.settings, self._add, Sampling(), private_socket=self.ingress.owner_socket
        )
        self.ends: list[WorkerEnd] = []
        self.ingress.on_end = lambda name, end: self.ends.append(end)
        self.answering = asyncio.Event()
        self.answering.set()
        self.underway = 0
        self.seen: list[Any] = []  # metadata, seconds left
        self.refusal: Target | None = None

    def _add(self, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((self,))

    async def start(self) -> None:
        await self.ports.start()
        answers = {INFER: self.answer, INFER_STREAM: self.answer}
        inference = Inference(answers, lambda: self.refusal, follow=self.seen.append)
        await self.ingress.start(inference, keep_off=())

    async def answer(self, request: Received, seconds: float | None, join: Join) -> Any:
        self.seen.append(seconds)
        self.underway += 1
        try:
            await self.answering.wait()
            if request.message.model == "full":
                raise QueueFull("full", 0.25)
            return join([bytes(tensor.data) for tensor in request.inputs])
        finally:
            self.underway -= 1

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def echo(messages: AsyncIterator[bytes], context: Any) -> None:
            self.seen.append(dict(context.invocation_metadata()))
            self.seen.append(context.time_remaining())
            self.underway += 1
            try:
                async for message in messages:
                    await context.write(message)
                context.set_trailing_metadata((("echoed", "yes"),))
                if handler_call_details.method != ECHO:
                    details = (("grpc-status-details-bin", b"\x01\xff"),)
                    await context.abort(grpc.StatusCode.DATA_LOSS, "lost", details)
            finally:
                self.underway -= 1

        return grpc.stream_stream_rpc_method_handler(echo)

    def channel(self) -> grpc.aio.Channel:
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.ingress.port}", options=options)

    @property
    def pid(self) -> int:
        """Of the process in service; 0 while there is none."""
        return self.ingress.seen()[0].pid or 0


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[FakeOwner]:
    made = FakeOwner(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.ingress.close()
        await made.ports.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - other processes tell no Event
            await asyncio.sleep(0.01)


def unary(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(method)


def infer(channel: grpc.aio.Channel, message: wire.InferRequest = MESSAGE, **options: Any) -> Any:
    return unary(channel, INFER)(message.SerializeToString(), metadata=bearer("i"), **options)


async def test_calls_cross_and_end_there_when_their_callers_leave(owner: FakeOwner) -> None:
    async with owner.channel() as channel:
        assert await infer(channel) == b"12345678"
        assert owner.seen == [{}, None]
        owner.answering.clear()
        call, late = infer(channel), infer(channel, timeout=0.3)
        await until(lambda: owner.underway == 2)
        assert 0 < max(each for each in owner.seen if isinstance(each, float)) < 0.31
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await late
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: owner.underway == 1)
        call.cancel()
        await until(lambda: owner.underway == 0)

        owner.answering.set()
        stream: Any = channel.stream_stream(INFER_STREAM)
        requests = [MESSAGE.SerializeToString()] * 100
        replies = [each async for each in stream(iter(requests), metadata=bearer("i"))]
        assert replies == [b"12345678"] * 100
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unary(channel, INFER)(b"\xff\xff", metadata=bearer("i"))
        assert refused.value.code() is grpc.StatusCode.UNKNOWN  # as with one process


async def test_other_calls_are_passed_on_whole_and_tokens_stay_behind(owner: FakeOwner) -> None:
    async with owner.channel() as channel:
        sent = (*bearer("a"), ("traceparent", "00-1"), ("braid-role", "admin"), ("x-bin", b"\0"))
        echo: Any = channel.stream_stream(ECHO)
        call = echo(iter([b"1", b"", b"3"]), metadata=sent, timeout=9)
        assert [each async for each in call] == [b"1", b"", b"3"]
        assert ("echoed", "yes") in tuple(await call.trailing_metadata())
        seen, seconds = owner.seen
        assert 0 < seconds <= 9
        assert (seen["traceparent"], seen["x-bin"]) == ("00-1", b"\0")
        assert "authorization" not in seen

        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await unary(channel, "/echo/Lose")(b"", metadata=bearer("a"))
        assert (lost.value.code(), lost.value.details()) == (grpc.StatusCode.DATA_LOSS, "lost")
        assert dict(lost.value.trailing_metadata() or ())["grpc-status-details-bin"] == b"\x01\xff"

        call = echo(metadata=bearer("a"))
        await until(lambda: owner.underway == 1)
        call.cancel()
        await until(lambda: owner.underway == 0)

        forged = (("braid-role", "admin"), ("grpc-role", "admin"), *bearer("i"))
        for metadata, code in (
            (forged, grpc.StatusCode.PERMISSION_DENIED),
            (bearer("x"), grpc.StatusCode.UNAUTHENTICATED),
            ((), grpc.StatusCode.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await unary(channel, ECHO)(b"", metadata=metadata)
            assert refused.value.code() is code
    folder = owner.ingress.owner_socket.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(owner.ingress.owner_socket.stat().st_mode) == 0o600


async def test_in_a_crowd_the_owner_is_asked_before_a_message_is_read(owner: FakeOwner) -> None:
    metrics = Metrics()
    async with owner.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await infer(channel, wire.InferRequest(model="full"))
        owner.refusal = Target(metrics.unknown, None, QueueFull("every queue is", 0.25))
        owner.seen.clear()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(channel)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ())["braid-retry-after-ms"] == "250"
        assert metrics.unknown.statistics.fail.count == 1
        assert owner.seen == []
        owner.refusal = None
        assert await infer(channel) == b"12345678"


async def test_what_does_not_fit_is_refused_and_a_stream_waits(tmp_path: Path) -> None:
    owner = FakeOwner(tmp_path, shared_memory_bytes=1 << 20, max_message_bytes=1 << 20)
    try:
        await owner.start()
        large = wire.InferRequest(inputs=[wire.Tensor(data=bytes(900_000))])
        async with owner.channel() as channel:
            owner.answering.clear()
            held = [infer(channel, large) for _ in range(2)]
            await until(lambda: owner.underway == 2)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await infer(channel, large)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "BRAID_SHARED_MEMORY_BYTES" in (refused.value.details() or "")
            stream: Any = channel.stream_stream(INFER_STREAM)
            replies = stream(iter([large.SerializeToString()] * 5), metadata=bearer("i"))
            await asyncio.sleep(0.1)
            assert owner.underway == 2
            owner.answering.set()
            assert [len(await each) for each in held] == [900_000] * 2
            assert [len(each) async for each in replies] == [900_000] * 5
    finally:
        await owner.ingress.close()
        await owner.ports.close()


async def test_a_dead_ingress_leaves_nothing_and_is_replaced(owner: FakeOwner) -> None:
    first, descriptors = owner.pid, len(os.listdir("/proc/self/fd"))
    owner.answering.clear()
    async with owner.channel() as channel:
        os.kill(first, signal.SIGTERM)  # goes to every process of a service: the owner decides
        call = infer(channel)
        await until(lambda: owner.underway == 1)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: owner.underway == 0)
    await until(lambda: owner.ingress.any_up and owner.pid not in (0, first))
    owner.answering.set()
    async with owner.channel() as channel:
        assert await infer(channel) == b"12345678"
    assert [end.reason.value for end in owner.ends] == ["killed"]
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 4  # of gRPC's own


async def test_without_its_owner_an_ingress_says_so_and_ends(owner: FakeOwner) -> None:
    pid = owner.pid
    owner.answering.clear()
    async with owner.channel() as channel:
        echo: Any = channel.stream_stream(ECHO)
        calls = [infer(channel), echo(metadata=bearer("a")).read()]
        waiting = [asyncio.ensure_future(each) for each in calls]
        await until(lambda: owner.underway == 2)
        closing = asyncio.gather(owner.ingress.close(), owner.ports.close())
        for each in waiting:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await each
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "restarting" in (refused.value.details() or "")
        await closing
    left = (Path(f"/proc/{pid}"), owner.ingress.owner_socket.parent)
    assert not any(map(Path.exists, left))


@pytest.mark.slow
async def test_one_that_hangs_is_replaced(
    owner: FakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = owner.pid
    os.kill(hung, signal.SIGSTOP)
    monkeypatch.setattr("server.ingress.process.SILENT_SECONDS", 2)
    await until(lambda: owner.pid not in (0, hung) and owner.ingress.any_up)
    assert [end.reason.value for end in owner.ends] == ["killed"]
    async with owner.channel() as channel:
        assert await infer(channel) == b"12345678"


def test_a_call_has_one_reply_in_memory_at_most_and_its_end_frees_it() -> None:
    memory = ReplyMemory(1000)
    first, second = memory.join_for(1), memory.join_for(2)
    first([b"abc", memoryview(b"defg")])
    again = first([b"xy"])  # the batch ran again
    assert bytes(memory.arena.view[again.offset : again.offset + again.size_bytes]) == b"xy"
    assert memory.arena.used_bytes == 64
    assert second([bytes(1000)]) == bytes(1000)  # no room
    assert second([bytes(2000)]) == bytes(2000)  # never
    with pytest.raises(DeviceOutOfMemory):
        memory.place(2, [bytes(2000)])
    memory.drop(1)
    assert memory.arena.used_bytes == 0
    placed = second([bytes(900)])
    memory.hand_over(2)
    memory.drop(2)  # it is the ingress's
    assert memory.arena.used_bytes >= 900
    memory.arena.release(placed.offset)
    first([b"z"])
    memory.abandon()
    assert first([b"late"]) == b""


def test_a_port_is_shared_with_nobody_else() -> None:
    with reserved_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        held.listen()
        with pytest.raises(Exception, match="BRAID_GRPC_PORT"):
            reserved_port("127.0.0.1", port)
