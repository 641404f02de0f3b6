"""Memory of the machine, or of the container if that is less."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def usable_memory_bytes() -> int:
    """Bytes of memory of this machine, or of the container if that is less."""
    usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _LIMITS:
        try:
            usable = min(usable, int(limit.read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return usable
