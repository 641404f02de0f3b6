"""What hostile code in a confined importer would try, with how each try must end.

    python -m tests.attack.inside WORK OUTSIDE BYSTANDER USER

Becomes USER, confines itself as an importer does and makes all tries; prints a line of JSON,
try ─> end. WORK is the importer's folder, OUTSIDE one with a file ``secret``, BYSTANDER the id of a
process of the same user.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from braid.engine.importer.host.request import GIB, ImportLimits
from braid.engine.importer.sandbox.confinement import confine

LIMITS = ImportLimits(memory_bytes=GIB, file_bytes=1 << 20, open_files=64)
DONE, REFUSED = "done", ("EPERM", "EACCES")
PR_SET_DUMPABLE = 4
F_SETSIG, FIOSETOWN, SIOCSPGRP = 10, 0x8901, 0x8902


@dataclass(frozen=True)
class Place:
    """What a try may name."""

    work: Path
    outside: Path
    bystander: int

    @property
    def secret(self) -> Path:
        return self.outside / "secret"


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "failed")


def _call(number: int, *arguments: int) -> None:
    _checked(_libc.syscall(number, *map(ctypes.c_long, arguments)))


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)


def _memory_of(pid: int, mode: int) -> None:
    os.close(os.open(f"/proc/{pid}/mem", mode))


def _limits_of(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))


def _raise_limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB))


def _thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def _stacks() -> None:
    """Start threads until the stack of one finds no room."""
    end = threading.Event()
    before = threading.stack_size(256 << 20)
    try:
        for _ in range(16):
            threading.Thread(target=end.wait, daemon=True).start()
    finally:
        end.set()
        threading.stack_size(before)


def _thread_that_connects() -> None:
    found: list[OSError] = []

    def connect() -> None:
        try:
            socket.socket()
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if found:
        raise found[0]


def _many_files(work: Path) -> None:
    files = []
    try:
        for _ in range(100):
            files.append((work / "many").open("w"))  # noqa: PERF401
    finally:
        for file in files:
            file.close()


def _own_file(work: Path) -> None:
    _write(work / "own", "text")
    os.link(work / "own", work / "linked")
    os.mkdir(work / "sub")
    os.rename(work / "own", work / "sub" / "moved")
    assert (work / "sub" / "moved").read_text() == "text"


def _through_a_link(place: Place) -> None:
    os.symlink(place.secret, place.work / "way")
    (place.work / "way").read_text()


def _moved_out(place: Place) -> None:
    _write(place.work / "mine", "text")
    os.rename(place.work / "mine", place.outside / "mine")


def _signal_by_owner(pid: int) -> None:
    """Have a pipe send SIGKILL to a process when it is written to."""
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
    fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")


def _command(command: int, value: int) -> None:
    reader, _ = os.pipe()
    fcntl.fcntl(reader, command, value)


def _control(request: int, value: int) -> None:
    reader, _ = os.pipe()
    fcntl.ioctl(reader, request, struct.pack("i", value))


def _lease(work: Path) -> None:
    with (work / "leased").open("w") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)


def _folder_watch(outside: Path) -> None:
    folder = os.open(outside, os.O_RDONLY)
    fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE)


def _inotify(outside: Path) -> None:
    watches = _libc.inotify_init1(0)
    _checked(watches)
    _checked(_libc.inotify_add_watch(watches, str(outside).encode(), 0xFFF))


Try = Callable[[Place], object]
REFUSED_TRIES: Mapping[str, Try] = {
    "a socket of the network": lambda p: socket.socket(),
    "a socket of IPv6": lambda p: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "a local socket": lambda p: socket.socket(socket.AF_UNIX),
    "a raw socket": lambda p: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "a socket in another thread": lambda p: _thread_that_connects(),
    "another program": lambda p: os.execv("/bin/true", ["true"]),
    "a child program": lambda p: subprocess.run(["/bin/true"], check=True),
    "a shell": lambda p: subprocess.run("true", shell=True, check=True),
    "a program by descriptor": lambda p: os.execve(
        os.open("/usr/bin/true", os.O_RDONLY), ["true"], {}
    ),
    "a fork": lambda p: os.fork() or os._exit(0),
    "new namespaces": lambda p: _checked(_libc.unshare(0x10000000)),
    "a mount": lambda p: _checked(_libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
    "another root": lambda p: os.chroot(p.work),
    "a debugger of itself": lambda p: _checked(_libc.ptrace(0, 0, 0, 0)),
    "a debugger of another": lambda p: _checked(_libc.ptrace(16, p.bystander, 0, 0)),
    "memory of another to read": lambda p: _memory_of(p.bystander, os.O_RDONLY),
    "memory of another to write": lambda p: _memory_of(p.bystander, os.O_RDWR),
    "memory of the server": lambda p: _memory_of(os.getppid(), os.O_RDWR),
    "environment of the server": lambda p: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "descriptors of the server": lambda p: os.listdir(f"/proc/{os.getppid()}/fd"),
    "command lines of others": lambda p: Path(f"/proc/{p.bystander}/cmdline").read_bytes(),
    "the end of another": lambda p: os.kill(p.bystander, signal.SIGKILL),
    "the end of all": lambda p: os.kill(-1, signal.SIGTERM),
    "a signal to a thread of another": lambda p: _call(
        234, p.bystander, p.bystander, signal.SIGKILL
    ),
    "a descriptor of a process": lambda p: os.pidfd_open(p.bystander),
    "limits of another": lambda p: _limits_of(p.bystander),
    "priority of another": lambda p: os.setpriority(os.PRIO_PROCESS, p.bystander, 19),
    "cores of another": lambda p: os.sched_setaffinity(p.bystander, [0]),
    "cores of the server": lambda p: os.sched_setaffinity(os.getppid(), [0]),
    "policy of another": lambda p: os.sched_setscheduler(
        p.bystander, os.SCHED_IDLE, os.sched_param(0)
    ),
    "limits of another to read": lambda p: resource.prlimit(p.bystander, resource.RLIMIT_CPU),
    "a signal by the owner of a pipe": lambda p: _signal_by_owner(p.bystander),
    "an owner of a pipe": lambda p: _command(fcntl.F_SETOWN, p.bystander),
    "a group that owns a pipe": lambda p: _command(fcntl.F_SETOWN, -os.getppid()),
    "the signal of a pipe": lambda p: _command(F_SETSIG, signal.SIGKILL),
    "an owner by ioctl": lambda p: _control(FIOSETOWN, p.bystander),
    "a group by ioctl": lambda p: _control(SIOCSPGRP, p.bystander),
    "signals by ioctl": lambda p: _control(termios.FIOASYNC, 1),
    "a lease": lambda p: _lease(p.work),
    "notes about a folder outside": lambda p: _folder_watch(p.outside),
    "a watch on a folder outside": lambda p: _inotify(p.outside),
    "a session of its own": lambda p: os.setsid(),
    "a group of its own": lambda p: os.setpgid(0, 0),
    "a group of others": lambda p: os.killpg(os.getpgid(p.bystander), 0),
    "a name of an abstract socket": lambda p: socket.socket(socket.AF_UNIX).bind("\0braid"),
    "room without a file": lambda p: os.posix_fallocate(1, 0, 1),
    "a file outside to read": lambda p: p.secret.read_text(),
    "a file outside to write": lambda p: _write(p.secret, "gone"),
    "a new file outside": lambda p: _write(p.outside / "new", "here"),
    "a file outside removed": lambda p: p.secret.unlink(),
    "a file outside shortened": lambda p: os.truncate(p.secret, 0),
    "a file outside through a link": _through_a_link,
    "modes outside": lambda p: os.chmod(p.secret, 0o777),
    "owners outside": lambda p: os.chown(p.secret, os.getuid(), os.getgid()),
    "times outside": lambda p: os.utime(p.secret, (0, 0)),
    "attributes outside": lambda p: os.setxattr(p.secret, "user.x", b"1"),
    "a list of a folder outside": lambda p: os.listdir(p.outside),
    "the list of accounts": lambda p: Path("/etc/shadow").read_text(),
    "shared memory of the machine": lambda p: os.listdir("/dev/shm"),
    "a new object of shared memory": lambda p: _write(Path("/dev/shm/braid_x"), ""),
    "temporary files": lambda p: _write(Path("/tmp/braid_x"), ""),
    "a pipe with a name": lambda p: os.mkfifo(p.work / "fifo"),
    "a program to schedule": lambda p: os.listdir("/etc/cron.d"),
    "shared memory that stays": lambda p: _checked(_libc.shmget(0, 4096, 0o1600)),
    "a key of the kernel": lambda p: _call(248, 0, 0, 0, 0, 0),
    "rings of the kernel": lambda p: _call(425, 1, 0),
    "faults of user space": lambda p: _call(323, 0),
    "counters of the kernel": lambda p: _call(298, 0, 0, -1, -1, 0),
    "programs in the kernel": lambda p: _call(321, 0, 0, 0),
    "a file in memory": lambda p: os.close(os.memfd_create("more")),
}
OTHER_TRIES: Mapping[str, tuple[Try, tuple[str, ...]]] = {
    "a limit raised again": (lambda p: _raise_limit(), ("ValueError", *REFUSED)),
    "a file outside linked in": (
        lambda p: os.link(p.secret, p.work / "taken"),
        (*REFUSED, "EXDEV"),
    ),
    "a file outside moved in": (
        lambda p: os.rename(p.secret, p.work / "taken"),
        (*REFUSED, "EXDEV"),
    ),
    "a file of its own moved out": (_moved_out, (*REFUSED, "EXDEV")),
    "memory over the limit": (lambda p: mmap.mmap(-1, 2 * GIB), ("ENOMEM",)),
    "shared memory over the limit": (
        lambda p: mmap.mmap(-1, 2 * GIB, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        ("ENOMEM",),
    ),
    "addresses over the limit": (
        lambda p: mmap.mmap(-1, 2 * GIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0),
        ("ENOMEM",),
    ),
    "stacks over the limit": (lambda p: _stacks(), ("RuntimeError",)),
    "a secret file in memory": (lambda p: _call(447, 0), (*REFUSED, "ENOSYS")),
    "objects over the limit": (lambda p: bytearray(2 * GIB), ("MemoryError",)),
    "a file over the limit": (lambda p: _write(p.work / "big", "x" * (2 << 20)), ("EFBIG",)),
    "too many open files": (lambda p: _many_files(p.work), ("EMFILE",)),
    "a thread": (lambda p: _thread(), (DONE,)),
    "sums": (lambda p: sum(range(100)), (DONE,)),
    "files of its own": (lambda p: _own_file(p.work), (DONE,)),
    "a library": (lambda p: __import__("decimal"), (DONE,)),
    "random numbers": (lambda p: Path("/dev/urandom").open("rb").close(), (DONE,)),
    "its own end": (lambda p: signal.raise_signal(signal.SIGCONT), (DONE,)),
    "cores of its own": (lambda p: os.sched_setaffinity(0, os.sched_getaffinity(0)), (DONE,)),
    "a flag of its own descriptor": (lambda p: _command(fcntl.F_SETFL, os.O_NONBLOCK), (DONE,)),
}
CALLS: Mapping[str, tuple[int, Callable[[int], tuple[int, ...]]]] = {
    # number on x86-64, arguments by the bystander's id
    "sched_setattr": (314, lambda pid: (pid, 0, 0)),
    "sched_setparam": (142, lambda pid: (pid, 0)),
    "ioprio_set": (251, lambda pid: (1, pid, 3 << 13)),
    "fanotify_init": (300, lambda pid: (0, 0)),
    "migrate_pages": (256, lambda pid: (pid, 0, 0, 0)),
    "move_pages": (279, lambda pid: (pid, 0, 0, 0, 0, 0)),
    "process_madvise": (440, lambda pid: (pid, 0, 0, 0, 0)),
    "process_vm_readv": (310, lambda pid: (pid, 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, lambda pid: (pid, 0, 0, 0, 0, 0)),
    "kcmp": (312, lambda pid: (pid, os.getpid(), 0, 0, 0)),
    "pidfd_getfd": (438, lambda pid: (0, 0, 0)),
    "pidfd_send_signal": (424, lambda pid: (0, 9, 0, 0)),
    "rt_sigqueueinfo": (129, lambda pid: (pid, 9, 0)),
    "rt_tgsigqueueinfo": (297, lambda pid: (pid, pid, 9, 0)),
    "get_robust_list": (274, lambda pid: (pid, 0, 0)),
    "timer_create": (222, lambda pid: (0, 0, 0)),
    "personality": (135, lambda pid: (0xFFFFFFFF,)),
    "semget": (64, lambda pid: (0, 1, 0o1600)),
    "msgget": (68, lambda pid: (0, 0o1600)),
    "mq_open": (240, lambda pid: (0, 0, 0, 0)),
    "add_key": (248, lambda pid: (0, 0, 0, 0, 0)),
    "keyctl": (250, lambda pid: (0, 0, 0)),
    "io_uring_enter": (426, lambda pid: (0, 0, 0, 0)),
    "openat2": (437, lambda pid: (0, 0, 0, 0)),
    "sync": (162, lambda pid: ()),
    "sendmsg": (46, lambda pid: (1, 0, 0)),
    "prctl of PR_SCHED_CORE": (157, lambda pid: (62, 2, pid, 0, 0)),
    "prctl of PR_SET_DUMPABLE": (157, lambda pid: (4, 0, 0, 0, 0)),
    "clone3": (435, lambda pid: (0, 0)),
    "a call of the second table": (0x40000000 + 39, lambda pid: ()),
}


def _call_about(number: int, arguments: Callable[[int], tuple[int, ...]]) -> Try:
    return lambda place: _call(number, *arguments(place.bystander))


TRIES = {
    **{name: (what, REFUSED) for name, what in REFUSED_TRIES.items()},
    **OTHER_TRIES,
    **{
        f"the call {name}": (_call_about(*call), (*REFUSED, "ENOSYS"))
        for name, call in CALLS.items()
    },
}
"""Try by name, and the ends that are right: ``done``, an errno, or the name of an exception."""

ON_X86 = (
    "the call",
    "key of the kernel",
    "rings of",
    "faults of",
    "counters of",
    "programs in",
    "a signal to",
)


def _become(user: int) -> None:
    """Become a user whom the folder of this Python may be closed to."""
    if user != os.getuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        _checked(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))  # as a program that the user starts


def attempt(what: Try, place: Place) -> str:
    """Make one try; how it ended."""
    try:
        what(place)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:
        return type(error).__name__
    return DONE


def main() -> None:
    """Confine this process, make all tries, and print how they ended."""
    place = Place(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    _become(int(sys.argv[4]))
    confine(LIMITS, place.work)
    ends = {name: attempt(what, place) for name, (what, _) in TRIES.items()}
    print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main()
