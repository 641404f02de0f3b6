"""Who killed a process: the kernel for want of memory, or somebody else?"""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def oom_kills(counters: Path = _COUNTERS) -> int | None:
    """Processes that the kernel has killed for want of memory, containers' included.

    None: the system does not say.
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
    """Who killed a process with SIGKILL, from the counts of ``oom_kills`` around its life."""
    if before is None or after is None:
        return (
            "by the kernel because the machine or container ran out of memory, or by somebody; "
            "register the file again, and if that ends the same way, lower "
            "BRAID_IMPORT_MEMORY_BYTES or give the server more memory"
        )
    if after > before:
        return (
            "by the kernel, because the machine or container ran out of memory; give it more, or "
            "let imports use less (BRAID_IMPORT_MEMORY_BYTES, BRAID_IMPORT_TOGETHER_BYTES)"
        )
    return "by somebody, not for want of memory; register the file again"
