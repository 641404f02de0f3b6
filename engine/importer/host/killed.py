"""Tells whether the kernel killed a process for want of memory, or another process did."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def oom_kills(counters: Path = _COUNTERS) -> int | None:
    """Count of processes that the kernel has killed for want of memory, also in containers.

    None: the system has no such counter.
    """
    try:
        for line in counters.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        return None
    return None


def how_killed(before: int | None, after: int | None) -> str:
    """End of the sentence about a process that got SIGKILL, from ``oom_kills`` around its life."""
    if before is None or after is None:
        return (
            "by the kernel because the machine or container ran out of memory, or by another "
            "process; register the file again, and if that ends the same way, lower "
            "BRAID_IMPORT_MEMORY_BYTES or give the server more memory"
        )
    if after > before:
        return (
            "by the kernel, because the machine or container ran out of memory; give it more, or "
            "let imports use less (BRAID_IMPORT_MEMORY_BYTES, BRAID_IMPORT_TOGETHER_BYTES)"
        )
    return "by another process, not for want of memory; register the file again"
