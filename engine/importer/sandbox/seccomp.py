"""System call filter of the importer process: no network, no other programs or processes.

Calls on the list fail with EPERM, in this process and its threads, for good. So do clone without
CLONE_THREAD, tgkill and prlimit of another process. clone3, whose flags a filter cannot see, is
said to be missing; libraries use clone then. Other architectures than the two of the list, and
hosts whose kernel has no filters, go without.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As a filter sees them."""

CLONE, CLONE3, TGKILL, PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
"""Refused by their arguments: a new process, a signal to another one, limits of another one."""

_TABLE = """
    # network
    socket 41 198; connect 42 203; bind 49 200; listen 50 201
    accept 43 202; accept4 288 242
    # other programs and processes
    execve 59 221; execveat 322 281; fork 57 0; vfork 58 0
    ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271
    process_madvise 440 440; process_mrelease 448 448; kcmp 312 272
    move_pages 279 239; migrate_pages 256 238
    # signals to others, and their priorities
    kill 62 129; tkill 200 130; rt_sigqueueinfo 129 138
    rt_tgsigqueueinfo 297 240; pidfd_open 434 434; pidfd_getfd 438 438
    pidfd_send_signal 424 424; setpriority 141 140; ioprio_set 251 30
    sched_setparam 142 118; sched_setscheduler 144 119; sched_setattr 314 274
    # file systems, and what Landlock does not look at: modes, owners, times, attributes
    mount 165 40; umount2 166 39; unshare 272 97; setns 308 268
    chroot 161 51; pivot_root 155 41; open_tree 428 428
    move_mount 429 429; fsopen 430 430; fsconfig 431 431
    fsmount 432 432; fspick 433 433; mount_setattr 442 442
    open_by_handle_at 304 265; chmod 90 0; fchmod 91 52
    fchmodat 268 53; fchmodat2 452 452; chown 92 0; fchown 93 55
    lchown 94 0; fchownat 260 54; utime 132 0; utimes 235 0
    futimesat 261 0; utimensat 280 88; setxattr 188 5; lsetxattr 189 6
    fsetxattr 190 7; removexattr 197 14; lremovexattr 198 15
    fremovexattr 199 16; setxattrat 463 463; removexattrat 466 466
    # memory that outlives the process, or that no limit of the process counts
    memfd_create 319 279; memfd_secret 447 447
    shmget 29 194; semget 64 190; msgget 68 186; mq_open 240 180
    # large or rarely used parts of the kernel
    bpf 321 280; keyctl 250 219; add_key 248 217; request_key 249 218
    io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427
    userfaultfd 323 282; perf_event_open 298 241
"""


def _read(table: str) -> dict[str, tuple[int, int]]:
    lines = [line.strip() for line in table.splitlines() if "#" not in line]
    calls = [call.split() for line in lines if line for call in line.split(";")]
    return {name: (int(first), int(second)) for name, first, second in calls}


REFUSED: Mapping[str, tuple[int, int]] = _read(_TABLE)
"""By name: number on x86-64 and on aarch64; 0: that one has no such call."""


_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16
_ALLOW, _DENY, _MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000  # a second table of calls on x86-64

_Line = tuple[int, int, int, int]  # code, lines to skip if true, if false, operand


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def forbid_calls() -> bool:
    """Install the filter; False where the host has none."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return False
    code = _filter(ARCHITECTURES[machine], list(ARCHITECTURES).index(machine), os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _filter(architecture: int, column: int, pid: int) -> bytes:
    """Code of the filter: deny other architectures and the listed calls, allow the rest."""
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        *_unless(_EQUAL, architecture, _DENY),
        (_LOAD, 0, 0, _NUMBER_AT),
        *_if(_AT_LEAST, _X32, _DENY),
        *_if(_EQUAL, CLONE3[column], _MISSING),
    ]
    for numbers in REFUSED.values():
        if numbers[column]:
            lines += _if(_EQUAL, numbers[column], _DENY)
    for call, allowed in (
        (CLONE, [(_ANY_BIT, _CLONE_THREAD)]),
        (TGKILL, [(_EQUAL, pid)]),
        (PRLIMIT, [(_EQUAL, 0), (_EQUAL, pid)]),
    ):
        checks: list[_Line] = [(_LOAD, 0, 0, _ARGUMENT_AT)]
        for code, operand in allowed:
            checks += _if(code, operand, _ALLOW)
        checks.append((_RETURN, 0, 0, _DENY))
        lines += [(_EQUAL, 0, len(checks), call[column]), *checks]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _if(code: int, operand: int, verdict: int) -> list[_Line]:
    return [(code, 0, 1, operand), (_RETURN, 0, 0, verdict)]


def _unless(code: int, operand: int, verdict: int) -> list[_Line]:
    return [(code, 1, 0, operand), (_RETURN, 0, 0, verdict)]
