"""What a worker says of itself while requests keep other work waiting."""

import mmap
import socket
from types import SimpleNamespace
from typing import Any, NoReturn, cast, get_args

import pytest

from braid.core.errors import DeviceLost, InvalidRequest
from braid.engine.device import Backend
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    AnyRequest,
    DescribeDevice,
    Message,
    RunExecutable,
    WorkerCall,
    WorkerFailure,
)
from braid.engine.runtime.stopping import stop_signal
from braid.engine.worker.loop import Worker
from braid.engine.worker.process.current_work import CurrentWork


@pytest.fixture(autouse=True)
def no_stop_signal_afterwards() -> Any:
    token = stop_signal.set(None)
    yield
    stop_signal.reset(token)


def caused_by(cause: Exception) -> Exception:
    """An error of ours that hides another one."""
    error = InvalidRequest("the operator cannot run")
    error.__cause__ = cause
    return error


def serving_with(error: Exception) -> tuple[DeviceLost | None, list[Message]]:
    """What a worker ends with that met ``error`` in a request, and what it has answered."""

    def fail(_: object) -> NoReturn:
        raise error

    backend = cast(Backend, SimpleNamespace(fault=lambda _: None))
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, mmap.PAGESIZE) as arena:
        channel = BlockingChannel(ours)
        channel.send(WorkerCall(1, DescribeDevice()))
        ours.shutdown(socket.SHUT_WR)
        worker = Worker(BlockingChannel(theirs), arena, backend)
        cast(Any, worker.handlers)[DescribeDevice] = fail
        ended = None
        try:
            worker.serve()
        except DeviceLost as lost:
            ended = lost
        theirs.close()
        return ended, list(channel.receive() or ())


def test_a_step_ends_where_requests_go_first_however_many_they_are() -> None:
    now = 0.0
    activity = CurrentWork(lambda: now)
    backend = cast(Backend, SimpleNamespace())
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, mmap.PAGESIZE) as arena:
        worker = Worker(BlockingChannel(theirs), arena, backend, activity)
        seen: list[float | None] = []

        def requests(_: int | None) -> bool:
            nonlocal now
            now += 50.0  # for all of them
            seen.append(activity.status().step_s)
            return len(seen) < 2

        cast(Any, worker).receive = requests
        activity.begin_step()
        now += 10.0

        assert worker()

    assert seen == [None, None]
    assert activity.status().step_s == 0.0


@pytest.mark.parametrize(
    "error",
    [MemoryError(), SystemError("error return without exception set"), caused_by(MemoryError())],
)
def test_a_worker_whose_interpreter_found_no_memory_ends_and_answers_nobody(
    error: Exception,
) -> None:
    ended, answers = serving_with(error)
    assert isinstance(ended, DeviceLost)
    assert answers == []


@pytest.mark.parametrize("error", [RuntimeError("can't allocate memory"), MemoryError("64 GiB")])
def test_a_worker_that_a_large_allocation_failed_goes_on(error: Exception) -> None:
    ended, answers = serving_with(error)
    assert ended is None
    assert [type(answer) for answer in answers] == [WorkerFailure]


def test_every_request_has_a_handler() -> None:
    backend = cast(Backend, SimpleNamespace())
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, mmap.PAGESIZE) as arena:
        worker = Worker(BlockingChannel(theirs), arena, backend)

    assert {*worker.handlers, *worker.measurements, RunExecutable} == {*get_args(AnyRequest)}
