"""What a worker says of itself while requests keep other work waiting."""

from __future__ import annotations

import mmap
import socket
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from braid.engine.device import Backend
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import AnyRequest, RunExecutable
from braid.engine.runtime.stopping import stop_signal
from braid.engine.worker.loop import Worker
from braid.engine.worker.process.current_work import CurrentWork


@pytest.fixture(autouse=True)
def no_stop_signal_afterwards() -> Any:
    token = stop_signal.set(None)
    yield
    stop_signal.reset(token)


def test_a_step_ends_where_requests_go_first_however_many_they_are() -> None:
    now = 0.0
    activity = CurrentWork(lambda: now)
    backend = cast(Backend, SimpleNamespace(open_whole=None))
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


def test_every_request_has_a_handler() -> None:
    backend = cast(Backend, SimpleNamespace(open_whole=None))
    ours, theirs = socket.socketpair()
    with ours, theirs, mmap.mmap(-1, mmap.PAGESIZE) as arena:
        worker = Worker(BlockingChannel(theirs), arena, backend)

    assert {*worker.handlers, *worker.measurements, RunExecutable} == {*get_args(AnyRequest)}
