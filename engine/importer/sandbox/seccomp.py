"""System call filter of the importer process: no network, no other programs.

Calls on the list fail with EPERM, in this process, its threads and its children, for good. Other
architectures than the two below, and hosts whose kernel has no filters, go without.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
_X32 = 0x40000000  # a second table of calls on x86-64

# socket, connect, bind, listen, accept, accept4; execve, execveat; ptrace, process_vm_readv,
# process_vm_writev; mount, umount2, unshare, setns; bpf, keyctl, io_uring_setup
_CALLS = {
    "x86_64": (
        0xC000003E,
        (41, 42, 49, 50, 43, 288, 59, 322, 101, 310, 311, 165, 166, 272, 308, 321, 250, 425),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 203, 200, 201, 202, 242, 221, 281, 117, 270, 271, 40, 39, 97, 268, 280, 219, 425),
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def forbid_calls() -> bool:
    """Install the filter; False where the host has none."""
    if platform.machine() not in _CALLS:
        return False
    code = _filter(*_CALLS[platform.machine()])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _filter(architecture: int, calls: tuple[int, ...]) -> bytes:
    """Code of the filter: deny other architectures and the listed calls, allow the rest."""
    count = len(calls)
    lines = [
        (_LOAD, 0, 0, 4),  # the architecture of this call
        (_EQUAL, 0, count + 3, architecture),  # another one: to the denial
        (_LOAD, 0, 0, 0),  # the number of the call
        (_AT_LEAST, count + 1, 0, _X32),
    ]
    lines += [(_EQUAL, count - place, 0, call) for place, call in enumerate(calls)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
