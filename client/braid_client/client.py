"""The synchronous client: the methods of ``AsyncClient``, run by blocking.

    with Client("127.0.0.1:8001") as braid:
        braid.register("net", "net.onnx", batch_sizes=[1, 4], wait=True)
        result = braid.infer("net", {"x": np.zeros((1, 3, 224, 224), np.float32)})

    Client.infer ──runs in one step──> AsyncClient.infer ──waits by──> Client._answer, which blocks

Such a coroutine has nothing to wait for, so it needs no event loop.
"""

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import grpc

from braid_client.aio import AsyncClient
from braid_client.records import InferRequest, Job, StreamAnswer
from braid_client.rpcs import Connection
from braid_client.streams import as_async, at_once, iterate

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs a coroutine, which blocks, to its end."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(method(self, *args, **kwargs))

    return call


class Client(Connection):
    """A connection to one Braid server. Safe to share between threads.

    Every call has a deadline: its own ``timeout_s``, else the one of ``timeouts``. Failures are
    raised as one of ``braid_client.errors``.

    Args:
        address: ``host:port`` of the server's gRPC port.
        timeouts: deadlines of calls that are given none.
        retry: how often and when inference and reads are tried again.
        token: bearer token, where the server asks for one.
        tls: for a connection with TLS.
        credentials: instead of ``tls``, whatever gRPC has; None for a plain-text connection.
        metadata: sent with every call.
    """

    _transport = grpc
    _answers = staticmethod(as_async)

    @staticmethod
    async def _sleep(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    @staticmethod
    async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    @staticmethod
    async def _answer(answer: Any) -> Any:
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls under way and close the connection. May be called twice."""
        self._closed = True
        self._channel.close()

    infer = _blocking(AsyncClient.infer)
    register = _blocking(AsyncClient.register)
    cancel_job = _blocking(AsyncClient.cancel_job)
    jobs = _blocking(AsyncClient.jobs)
    nodes = _blocking(AsyncClient.nodes)
    models = _blocking(AsyncClient.models)
    model = _blocking(AsyncClient.model)
    delete = _blocking(AsyncClient.delete)
    serving = _blocking(AsyncClient.serving)
    set_serving = _blocking(AsyncClient.set_serving)
    schedule = _blocking(AsyncClient.schedule)
    schedule_again = _blocking(AsyncClient.schedule_again)
    pin_plan = _blocking(AsyncClient.pin_plan)

    def infer_stream(
        self, requests: Iterable[InferRequest], *, timeout_s: float | None = None
    ) -> Iterator[StreamAnswer]:
        """Send many requests on one stream and yield the answers as they are ready.

        Answers carry the id of their request and may overtake each other. A request that fails
        is answered with an error, and the stream goes on. ``requests`` is read in another
        thread; what it raises, this iterator raises. Nothing is retried.
        """
        return iterate(
            AsyncClient.infer_stream(cast(Any, self), iter(requests), timeout_s=timeout_s)
        )

    def watch_job(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[Job]:
        """Yield the job's state now, then each change, until it has ended.

        Goes on through a restart of the server, which resumes its jobs.

        Raises:
            JobNotFound: no such job.
        """
        return iterate(AsyncClient.watch_job(cast(Any, self), job_id, timeout_s=timeout_s))
