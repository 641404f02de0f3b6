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

from braid.engine.importer.sandbox.system_calls import (
    ARCHITECTURES,
    CLONE,
    CLONE3,
    PRLIMIT,
    REFUSED,
    TGKILL,
)

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
