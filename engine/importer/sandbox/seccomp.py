"""System call filter of the importer process: computation and files, nothing of other processes.

Calls that are not on the list fail with EPERM, in this process and its threads, for good; some are
allowed with some arguments only. Those from clone3 on, whose flags a filter cannot see, are said to
be missing; libraries use earlier ones then. Other architectures than the two of the list, and hosts
whose kernel has no filters, go without.
"""

import ctypes
import errno
import fcntl
import os
import platform
import struct
import termios

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as a filter sees them

_ALLOWED = """
    # descriptors, and files that Landlock allows
    read 0 63; write 1 64; close 3 57; close_range 436 436; lseek 8 62; pread64 17 67
    pwrite64 18 68; readv 19 65; writev 20 66; preadv 295 69; pwritev 296 70; sendfile 40 71
    copy_file_range 326 285; fsync 74 82; fdatasync 75 83; ftruncate 77 46; fadvise64 221 223
    stat 4 -1; lstat 6 -1; fstat 5 80; newfstatat 262 79; statx 332 291; statfs 137 43
    fstatfs 138 44; access 21 -1; faccessat 269 48; faccessat2 439 439; readlink 89 -1
    readlinkat 267 78; getdents64 217 61; getcwd 79 17; chdir 80 49; open 2 -1; openat 257 56
    creat 85 -1; mkdir 83 -1; mkdirat 258 34; link 86 -1; linkat 265 37; rename 82 -1
    renameat 264 38; renameat2 316 276; unlink 87 -1; unlinkat 263 35; rmdir 84 -1; umask 95 166
    dup 32 23; dup2 33 -1; dup3 292 24; pipe 22 -1; pipe2 293 59; poll 7 -1; ppoll 271 73
    select 23 -1; pselect6 270 72; eventfd2 290 19; epoll_create1 291 20; epoll_ctl 233 21
    epoll_wait 232 -1; epoll_pwait 281 22
    # memory
    mmap 9 222; munmap 11 215; mremap 25 216; mprotect 10 226; madvise 28 233; msync 26 227
    brk 12 214; mlock 149 228; munlock 150 229; membarrier 324 283; mbind 237 235
    set_mempolicy 238 237; get_mempolicy 239 236; pkey_alloc 330 289; pkey_free 331 290
    pkey_mprotect 329 288
    # threads, signals and time of the process itself
    futex 202 98; futex_waitv 449 449; set_robust_list 273 99; rseq 334 293; set_tid_address 218 96
    arch_prctl 158 -1; sched_yield 24 124; getcpu 309 168; rt_sigaction 13 134
    rt_sigprocmask 14 135; rt_sigreturn 15 139; sigaltstack 131 132; restart_syscall 219 128
    getitimer 36 102; setitimer 38 103; nanosleep 35 101; clock_nanosleep 230 115
    clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169; time 201 -1; times 100 153
    exit 60 93; exit_group 231 94
    # facts, and limits that only shrink
    getpid 39 172; gettid 186 178; getppid 110 173; getuid 102 174; geteuid 107 175; getgid 104 176
    getegid 108 177; getgroups 115 158; getresuid 118 148; getresgid 120 150; capget 125 90
    uname 63 160; sysinfo 99 179; getrusage 98 165; getrandom 318 278; getrlimit 97 163
    setrlimit 160 164; sched_getaffinity 204 123; sched_getparam 143 121
    sched_getscheduler 145 120; sched_get_priority_max 146 125; sched_get_priority_min 147 126
    landlock_create_ruleset 444 444; landlock_add_rule 445 445; landlock_restrict_self 446 446
"""
"""Name, number on x86-64 and on aarch64; -1, which is none: it has no such call."""


def _read(table: str) -> list[tuple[int, int]]:
    lines = [line.strip() for line in table.splitlines() if "#" not in line]
    calls = [call.split() for line in lines if line for call in line.split(";")]
    return [(int(first), int(second)) for _, first, second in calls]


_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_CLONE, _CLONE_THREAD = (56, 220), 0x00010000
_ITSELF = -1  # stands for the id of the process

_BY_VALUE = (
    # numbers, the argument that is looked at, and its values that are allowed
    ((157, 167), 0, (_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA, _PR_SET_NO_NEW_PRIVS)),  # prctl
    ((203, 122), 0, (0, _ITSELF)),  # sched_setaffinity
    ((234, 131), 0, (_ITSELF,)),  # tgkill
    ((302, 261), 0, (0, _ITSELF)),  # prlimit64
    ((16, 29), 1, (termios.TCGETS, termios.FIOCLEX, termios.FIONCLEX, termios.FIONREAD)),  # ioctl
    ((72, 25), 1, (*range(fcntl.F_SETFL + 1), fcntl.F_DUPFD_CLOEXEC)),  # fcntl: not owners, leases
)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _DENY, _MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_CLONE3 = 435  # on both; later calls have higher numbers

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
    """Code of the filter; ``column`` is that of the architecture in the tables."""
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for numbers in _read(_ALLOWED):
        lines += _if(_EQUAL, numbers[column], _ALLOW)
    for numbers, argument, values in _BY_VALUE:
        tests = [(_EQUAL, pid if value == _ITSELF else value) for value in values]
        lines += _looked_at(numbers[column], argument, tests)
    lines += _looked_at(_CLONE[column], 0, [(_ANY_BIT, _CLONE_THREAD)])
    lines += [*_if(_AT_LEAST, _CLONE3, _MISSING), (_RETURN, 0, 0, _DENY)]
    return b"".join(struct.pack("HBBI", *line[:3], line[3] & 0xFFFFFFFF) for line in lines)


def _looked_at(number: int, argument: int, tests: list[tuple[int, int]]) -> list[_Line]:
    """Lines that allow a call if the lower half of an argument passes one of the tests."""
    lines: list[_Line] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
    for code, operand in tests:
        lines += _if(code, operand, _ALLOW)
    lines.append((_RETURN, 0, 0, _DENY))
    return [(_EQUAL, 0, len(lines), number), *lines]


def _if(code: int, operand: int, verdict: int) -> list[_Line]:
    return [(code, 0, 1, operand), (_RETURN, 0, 0, verdict)]
