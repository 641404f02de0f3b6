"""Memory of the machine, or of the container if that is less."""

from __future__ import annotations

import os
from pathlib import Path

from braid.core.control_groups import ROOT, control_groups


def usable_memory_bytes(root: Path = ROOT) -> int:
    """Bytes of memory of this machine, or of the smallest control group that this process is in."""
    usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in control_groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                usable = min(usable, int((group / name).read_text()))
            except (OSError, ValueError):  # of the other version, or "max"
                continue
    return usable
