"""A process that has loaded the libraries once, from which all other children are forked.

    this process ──ForkServer.ask──(request, descriptors)──> fork server ──fork──> child
         ▲                                                                          │
         └───────── pid, then status: lines on the child's own report ──────────────┘

Loading torch takes a second and 150 MiB; a fork takes milliseconds, and its pages are shared. The
server starts no thread, opens no device and is told no secret: what it holds, an importer holds.
It ends with the process that started it, whatever thread did, and the kernel kills its children
with it. So a child belongs to the thread of its parent that never ends.

What libraries read when they load is the same for all children (``library_environment``); the rest
of a child's environment is set after the fork. Children share the layout of addresses and the seed
of hashes (docs/decisions/0065-fork-server.md).
"""

from __future__ import annotations

import array
import atexit
import ctypes
import errno
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid.core.child_process import end_with_parent, outlive_thread_of_parent, python_command
from braid.engine.processes.environment import library_environment
from braid.engine.processes.mapped_files import give_back_pages

MODULE = "braid.engine.processes.fork_server"

PRELOADED = (
    "onnxruntime",
    "braid.compiler.planning",
    "braid.engine.importer.sandbox.pipeline",
    "braid.engine.importer.upload.uploaded_model",
    "braid.engine.worker.process.assembly",
)
"""What children load anyway, so that none starts a thread before it is confined.

Not OpenVINO, whose thread would be this process's, and not sympy, which torch's kernels for meta
tensors load: few models need them (engine/ops/shape_rules.py).
"""

MOST_BYTES = 64 << 10  # of a request
MOST_DESCRIPTORS = 16
SEND_SECONDS = 10.0
IDLE_MS = 10_000  # without a request, after which pages of files are given back
ENDED = "the fork server ended; what it printed says why"


class ForkServer:
    """The fork server of this process, seen from there. May be used from any thread."""

    _lock = threading.Lock()
    _present: ForkServer | None = None

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Load libraries from now on; ``OSError`` if no process, memory or descriptor is left."""
        self._environment = environment
        self._owner = os.getpid()
        self._children = 0  # asked for, and not released yet
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(SEND_SECONDS)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    python_command(MODULE, str(self._owner), str(theirs.fileno())),
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._requests = ours

    @classmethod
    def running(cls) -> ForkServer:
        """This process's server; a new one, where none runs that loaded the same."""
        environment = library_environment()
        with cls._lock:
            present = cls._present
            if present is not None and not present._is_usable(environment):
                present._close()
                present = cls._present = None
            if present is None:
                present = cls._present = ForkServer(environment)
            return present

    @classmethod
    def end_unless_used(cls) -> None:
        """End this process's server, unless it has children; returns when it has ended."""
        with cls._lock:
            present = cls._present
            if present is None or present._children:
                return
            cls._present = None
            present._close()
        present._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _is_usable(self, environment: Mapping[str, str]) -> bool:
        is_ours = self._owner == os.getpid()  # not that of a process which forked this one
        return is_ours and self._environment == environment and self.is_alive

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Ask for a child, which is released once it has ended.

        ``descriptors``: report, stdin, stdout, stderr, and those that the child is given. Raises
        ``ConnectionError`` if the server has ended, ``OSError`` if it reads no requests.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            try:
                self._requests.sendmsg([json.dumps(request).encode()], rights)
            except OSError as error:
                if isinstance(error, ConnectionError) or error.errno == errno.EBADF:
                    raise ConnectionResetError(errno.ECONNRESET, ENDED) from None
                raise
            self._children += 1

    def release(self) -> None:
        """Note that a child has ended, or never began."""
        with self._lock:
            self._children -= 1

    def kill(self) -> None:
        """Kill the server, and with it its children."""
        self._process.kill()

    def _close(self) -> None:
        """Let the server end once its children have ended."""
        self._requests.close()
        if self._owner == os.getpid():  # else it is another process's child
            threading.Thread(target=self._process.wait, daemon=True).start()


@atexit.register
def _end_at_exit() -> None:
    if (present := ForkServer._present) is not None and present._owner == os.getpid():
        present._process.kill()
        present._process.wait()


@dataclass(frozen=True, slots=True)
class _Child:
    module: str  # is run as ``python -m`` does
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    cores: Sequence[int]
    report: int  # descriptor; lines of numbers: pid, or minus an errno; status
    descriptors: Sequence[int]  # stdin, stdout, stderr, and others

    def begin(self, server: int) -> None:
        """Make this process, which was forked, the child."""
        end_with_parent(server)
        os.setsid()
        _place(self.descriptors)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        os.sched_setaffinity(0, self.cores)
        sys.argv = [self.module, *self.arguments]
        _set_command_line(python_command(self.module))
        gc.enable()

    def run(self) -> None:
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


class _Server:
    """The process that forks."""

    def __init__(self, parent: int, requests: socket.socket) -> None:
        self._parent = os.pidfd_open(parent)
        outlive_thread_of_parent()
        self._requests = requests
        self._running: dict[int, tuple[int, int]] = {}  # pidfd -> pid, report
        self._reports: dict[int, int] = {}  # report -> pid
        self._poll = select.poll()

    def serve(self) -> _Child:
        """Serve until nobody is left to serve, which ends the process; returns in a child only."""
        self._poll.register(self._parent, select.POLLIN)
        self._poll.register(self._requests, select.POLLIN)
        idle_ms: int | None = IDLE_MS
        while True:
            ready = self._poll.poll(idle_ms)
            if not ready:
                give_back_pages()  # what the libraries read to load
            idle_ms = IDLE_MS if ready else None
            for descriptor, _ in ready:
                if descriptor == self._parent:
                    os._exit(0)
                elif descriptor in self._running:
                    self._ended(descriptor)
                elif descriptor in self._reports:  # its other end is closed
                    os.kill(self._reports.pop(descriptor), signal.SIGKILL)
                    self._poll.unregister(descriptor)
                elif descriptor != self._requests.fileno():
                    continue  # of a child whose end was seen in this turn
                elif (child := self._receive()) is not None and self._fork(child):
                    self._requests.detach()
                    return child
            if self._requests.fileno() < 0 and not self._running:
                os._exit(0)

    def _receive(self) -> _Child | None:
        """None: there are no more requests, or one is cut for want of descriptors here."""
        space = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
        content, rights, flags, _ = self._requests.recvmsg(MOST_BYTES, space)
        if not content:
            self._poll.unregister(self._requests)
            self._requests.close()
            return None
        numbers = array.array("i")
        for _, _, data in rights:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            _close(numbers)
            return None
        report, *descriptors = numbers
        return _Child(**json.loads(content), report=report, descriptors=descriptors)

    def _fork(self, child: _Child) -> bool:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(child.report, -(error.errno or errno.EAGAIN))
            _close((child.report, *child.descriptors))
            return False
        if not pid:
            child.begin(server)
            return True
        _close(child.descriptors)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, child.report
        self._reports[child.report] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._poll.register(child.report, 0)  # the end of the other side only
        _tell(child.report, pid)
        return False

    def _ended(self, pidfd: int) -> None:
        """Kill what a child has started, then report how it ended."""
        pid, report = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        if self._reports.pop(report, None) is not None:
            self._poll.unregister(report)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # keeps its number
        with suppress(ProcessLookupError, PermissionError):  # nothing is left of the group
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        _tell(report, os.waitstatus_to_exitcode(status))
        _close((pidfd, report))


def _tell(report: int, number: int) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(report, b"%d\n" % number)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _place(descriptors: Sequence[int]) -> None:
    """Give descriptors the numbers from 0 on, and close all others."""
    above = [fcntl.fcntl(number, fcntl.F_DUPFD, 3 + len(descriptors)) for number in descriptors]
    for number, descriptor in enumerate(above):
        os.dup2(descriptor, number)
    os.closerange(len(descriptors), os.sysconf("SC_OPEN_MAX"))


def _set_command_line(command: Sequence[str]) -> None:
    """Show this command as that of this process, as far as there is room for it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, fields[45:47])  # arg_start, arg_end in proc(5)
    line = b"\0".join(map(os.fsencode, command))[: end - begin - 1]
    ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)


def main() -> None:
    """Load the libraries and serve; in a child, run its module."""
    parent, requests = map(int, sys.argv[1:])
    end_with_parent(parent)
    gc.disable()  # collections are a seventh of the CPU time that loading takes
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # a collection of a child does not write to what it shares
    _Server(parent, socket.socket(fileno=requests)).serve().run()


if __name__ == "__main__":
    main()
