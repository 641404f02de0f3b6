"""A fake server for each test, and the client twice: sync, and async seen through a loop."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from braid_client import AsyncClient, Client, RetryPolicy
from tests.client.fake_server import FakeServer

FAST = RetryPolicy(max_attempts=4, initial_s=0.01, max_s=0.05)


class OnLoop:
    """An AsyncClient behind the surface of Client: its calls run on a loop in another thread."""

    def __init__(self, address: str, **options: Any) -> None:
        begun: Future[None] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._live(begun),))
        self._thread.start()
        begun.result(30)
        self._client = self._run(self._open(address, options))

    async def _live(self, begun: Future[None]) -> None:
        """Keep the loop until ``end``; what runs in it then is cancelled."""
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        begun.set_result(None)
        await self._ended.wait()

    async def _open(self, address: str, options: dict[str, Any]) -> AsyncClient:
        return AsyncClient(address, **options)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.isasyncgenfunction(method):
                return self._iterate(method(*args, **kwargs))
            return self._run(method(*args, **kwargs))

        return call

    def _iterate(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()

        async def step() -> Any:
            return await anext(source, end)

        while (item := self._run(step())) is not end:
            yield item

    def close(self) -> None:
        self._run(self._client.close())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture(params=["sync", "async"])
def braid(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Any]:
    """Typed Any, standing for both clients: what is tested here holds for each of them."""
    kind = Client if request.param == "sync" else OnLoop
    client = kind(server.address, retry=FAST)
    yield client
    client.close()
    if isinstance(client, OnLoop):
        client.end()
