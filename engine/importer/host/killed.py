"""Advice in the error about an importer that was killed."""

from __future__ import annotations


def how_killed(*, short_of_memory: bool | None) -> str:
    """Return the end of the sentence about an importer that got SIGKILL.

    ``short_of_memory`` tells whether the kernel killed processes for want of memory at that time;
    None: unknown.
    """
    if short_of_memory is None:
        return (
            "by the kernel because the machine or container ran out of memory, or by another "
            "process; register the file again, and if that ends the same way, lower "
            "BRAID_IMPORT_MEMORY_BYTES or give the server more memory"
        )
    if short_of_memory:
        return (
            "by the kernel, because the machine or container ran out of memory; give it more, or "
            "let imports use less (BRAID_IMPORT_MEMORY_BYTES, BRAID_IMPORT_TOGETHER_BYTES)"
        )
    return "by another process, not for want of memory; register the file again"
