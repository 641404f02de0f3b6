"""A descriptor has one owner, which closes it once."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from contextlib import suppress

import pytest

from braid.core.descriptors import Descriptor, connect


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_a_number_that_another_file_has_got_is_not_closed_again() -> None:
    owner = Descriptor(os.open(os.devnull, os.O_RDONLY))
    number = owner.fileno()
    owner.close()
    with open(os.devnull) as other:
        assert other.fileno() == number, "the lowest free number is taken"

        owner.close()
        del owner
        gc.collect()

        assert is_open(number)


def test_a_close_that_fails_is_not_tried_again() -> None:
    number = os.open(os.devnull, os.O_RDONLY)
    owner = Descriptor(number)
    os.close(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        owner.close()

    owner.close()
    with pytest.raises(ValueError, match="is closed"):
        owner.fileno()


def test_the_last_reference_closes_it_also_in_another_thread() -> None:
    owner = Descriptor(os.eventfd(0))
    number, may_end = owner.fileno(), threading.Event()

    def work(counter: Descriptor) -> None:
        may_end.wait()
        os.eventfd_write(counter.fileno(), 1)

    thread = threading.Thread(target=work, args=(owner,))
    thread.start()
    del owner
    assert is_open(number)

    may_end.set()
    thread.join()
    del thread
    assert not is_open(number)


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_caller_that_is_cancelled_leaves_no_socket(turns: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        connecting = asyncio.ensure_future(connect(asyncio.Protocol, ours))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        with suppress(asyncio.CancelledError):
            (await connecting)[0].close()

        async with asyncio.timeout(120):
            assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""
