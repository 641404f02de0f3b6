"""What the system says of the CPU."""

import re
from pathlib import Path

CPU_INFORMATION = Path("/proc/cpuinfo")

_BF16 = frozenset({"avx512_bf16", "amx_bf16"})  # as the system names them; one is enough
_SUMS_OF_8_BITS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})  # in 32 bits


def has_bf16_instructions() -> bool:
    return not _BF16.isdisjoint((cpu_fact("flags") or "").split())


def has_integer_instructions() -> bool:
    """Whether products of 8 bits are added in 32: elsewhere pairs of them saturate in 16."""
    return not _SUMS_OF_8_BITS.isdisjoint((cpu_fact("flags") or "").split())


def cpu_fact(name: str) -> str | None:
    try:
        text = CPU_INFORMATION.read_text()
    except OSError:
        return None
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None
