"""The OpenVINO library: whether it is there, how it is loaded, and its threads on a device's cores.

Loaded in a process when its first model is opened, which takes 0.2 s. Its converters stay out:
they bring a package that reports on use to its maker (openvino_telemetry).

Its threads are those of TBB, which has one pool of them in a process. It counts cores once, by
those that the process's first thread may use; on a device with pinned threads that is one. And
OpenVINO, told to pin, puts its threads there, too. So threads of the pool are made while the first
thread may use all of the device's cores, and pinned from here: to all cores but that of the calling
thread. TBB binds a thread to all cores whenever it begins to work, the calling one, too, unless
hwloc, by which it does that, was told at its first use that this is another machine.
"""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

log = logging.getLogger("braid.worker")

_CONVERTERS = "openvino.tools.ovc"
_BINDS_NOTHING = {"HWLOC_THISSYSTEM": "0"}  # what hwloc calls another machine


@cache
def is_installed() -> bool:
    """Whether OpenVINO can be loaded here; does not load it."""
    installed = find_spec("openvino") is not None
    if not installed:
        log.debug("OpenVINO takes no part: pip install 'braid-serve[openvino]'")
    return installed


def load() -> Any:
    """Import OpenVINO without its converters."""
    if "openvino" not in sys.modules:
        sys.modules.setdefault(_CONVERTERS, None)  # type: ignore[arg-type]  # import refuses it
    import openvino

    return openvino


class TbbThreads:
    """The pool of TBB in this process; its threads end with the last model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_counted = False  # whether TBB has counted the cores: it has made threads
        self._pool: set[int] = set()  # by the kernel's numbers

    @contextmanager
    def on(self, cpus: Sequence[int], device_cpus: Sequence[int]) -> Iterator[None]:
        """Let the body make the threads that work with the calling one.

        ``cpus`` are of all that work at once, the calling thread's first; with one it works alone.
        ``device_cpus``: all cores of the device; empty: nothing is pinned.
        """
        if not device_cpus:
            yield
            return
        with self._lock:
            before = _threads()
            widened = {threading.get_native_id()}
            if not self._has_counted:
                widened.add(os.getpid())
            masks = {thread: os.sched_getaffinity(thread) for thread in widened}
            for thread in masks:
                os.sched_setaffinity(thread, device_cpus)
            try:
                with nullcontext() if self._has_counted else _environment(_BINDS_NOTHING):
                    yield
                self._has_counted |= _threads() > before
            finally:
                for thread, mask in masks.items():
                    os.sched_setaffinity(thread, mask)
                self._pin(before, cpus[1:])

    def _pin(self, before: set[int], cpus: Sequence[int]) -> None:
        """Pin threads made since ``before``: one that is not pinned yet may have made another."""
        pinned: set[int] = set()
        while more := (self._pool | (threads := _threads()) - before) & threads - pinned:
            pinned |= more
            for thread in more if cpus else ():
                with suppress(OSError):  # it has ended, or the kernel refuses to pin
                    os.sched_setaffinity(thread, cpus)
        self._pool = pinned


tbb_threads = TbbThreads()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let the body run with these, too, unless the user has set them."""
    added = variables.keys() - os.environ.keys()
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _threads() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))
