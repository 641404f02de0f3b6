"""Files of the importer process: libraries to read, one folder to write (Landlock, Linux 5.13).

Whatever else a path names is refused with EACCES for good: the store, other uploads, the server's
shared memory, keys, other processes in /proc. The kernel then also refuses to trace processes that
are not confined, or to read their memory, and from Linux 6.12 to send them signals.

The rules hold for the calling thread and for those that it starts; open descriptors stay open.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on x86-64 and on aarch64
_ASK_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38

_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_LINK, _TRUNCATE = 1 << 13, 1 << 14
_READ = _READ_FILE | _READ_FOLDER
_WRITE = _READ | _WRITE_FILE | _REMOVE_FOLDER | _REMOVE_FILE | _MAKE_FOLDER | _MAKE_FILE
_WRITE |= _LINK | _TRUNCATE
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of kinds of access that a version knows
_TCP = 3  # bind and connect, from version 4
_OUTSIDE = 3  # abstract sockets and signals to processes that are not confined, from version 6

_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/proc/self"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/proc/sys/kernel"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/dev/zero", "/dev/random", "/dev/urandom"),
)
"""What libraries read beside their own files: the machine, the process itself."""


def keep_to(work: Path, readable: Iterable[Path] = ()) -> bool:
    """Confine this thread; False without Landlock in the kernel: file permissions alone hold."""
    version = _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < 1:
        return False
    handled = (1 << _RIGHTS.get(version, 16)) - 1
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", handled, _TCP, _OUTSIDE)
    rules = _call(_CREATE_RULESET, attributes, size, 0)
    if rules < 0:
        return False
    try:
        for path in {*map(Path, _SYSTEM), *_libraries(), *readable}:
            _allow(rules, path, _READ & handled)
        _allow(rules, Path(os.devnull), _OF_FILES & handled)
        _allow(rules, work, _WRITE & handled)
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return _call(_RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _libraries() -> set[Path]:
    """Folders of Python, of its packages, and of the shared libraries that are loaded."""
    names = {sys.prefix, sys.base_prefix, sys.exec_prefix, *filter(None, sys.path)}
    names |= set(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    for name, module in list(sys.modules.items()):
        if name.startswith("braid."):  # the folder of a checkout holds more than packages
            names |= set(getattr(module, "__path__", ()))
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        _, slash, file = line.partition("/")
        if slash and ".so" in file:
            names.add(os.path.dirname(f"/{file}"))
    return {Path(name) for name in names} - {Path("/")}


def _allow(rules: int, path: Path, rights: int) -> None:
    """Add a rule for a folder with all beneath it, or for a file; without one if there is none."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
