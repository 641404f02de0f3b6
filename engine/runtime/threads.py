"""Small work on the calling thread alone, so that it wakes no team of threads.

A team's other threads spin when their part is done, in case there is more
(docs/decisions/0007-pinned-threads.md): after the last operator of a request that is most of a
millisecond on a core which the front end wants. Seen on a 2-core AMD EPYC virtual machine: to copy
a tensor of 600 KB takes 5 us with two threads, 10 us with one, and 440 and 50 us of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_BYTES = 8 << 20
"""Most bytes that one thread moves in a time that is short beside the rest of a request."""


@contextmanager
def on_one_thread(size_bytes: int) -> Iterator[None]:
    """Let torch use one thread in the block if it handles ``size_bytes`` bytes or fewer."""
    threads = torch.get_num_threads()
    if threads == 1 or size_bytes > SMALL_BYTES:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
