"""One budget of memory for all processes of a server, and the limits that are its parts.

    BRAID_MEMORY_BYTES ──> front end │ calls │ tensors │ workers │ benches │ imports: one, others
                           192 MiB     the least of each, and so many sixteenths of the rest

The parts add up to the budget, so what is within its limit never makes the kernel kill a process of
the container. A limit that is set by itself is not a part: the others stay as they are.
"""

from collections.abc import Mapping

from pydantic import ByteSize

from braid.core.allowance import usable_memory_bytes

MIB = 2**20

FRONT_END_BYTES = 192 * MIB

LEAST_WORKER_BYTES = 512 * MIB
"""Libraries take 300 MiB; with this much, SqueezeNet (5 MB) is scheduled for one row."""

LEAST_IMPORT_BYTES = 1024 * MIB

_PARTS: Mapping[str, tuple[int, int, int]] = {
    "calls_memory_bytes": (64 * MIB, 1, 1024 * MIB),
    "shared_memory_bytes": (64 * MIB, 1, 1024 * MIB),
    "worker_memory_bytes": (LEAST_WORKER_BYTES, 6, 0),
    "bench_memory_bytes": (LEAST_WORKER_BYTES, 3, 0),
    "import_memory_bytes": (LEAST_IMPORT_BYTES, 3, 0),
    "import_together_bytes": (0, 2, 0),
}
"""By setting: least bytes, sixteenths of what is left over, and most bytes (0: any)."""

_OF_DEVICES = ("shared_memory_bytes", "worker_memory_bytes", "bench_memory_bytes")


def usual_budget_bytes() -> int:
    """80 % of what this process and its children may use."""
    return usable_memory_bytes() // 5 * 4


def memory_parts(budget_bytes: int, cpu_devices: int) -> dict[str, ByteSize]:
    """Limits by setting, of one of ``cpu_devices``. ValueError: too little for any model."""
    devices = max(1, cpu_devices)
    counts = {name: devices if name in _OF_DEVICES else 1 for name in _PARTS}
    least = sum(counts[name] * least for name, (least, _, _) in _PARTS.items()) + FRONT_END_BYTES
    if budget_bytes < least:
        raise ValueError(
            f"BRAID_MEMORY_BYTES is {_text(budget_bytes)} (0: 80 % of what the machine or the "
            f"container may use); {_text(least)} are needed for the server, a worker, a process "
            "that measures and one that imports: give the container more, or name fewer devices"
        )
    rest, parts = budget_bytes - least, {}
    for name, (bytes_least, sixteenths, most) in _PARTS.items():
        part = bytes_least + rest * sixteenths // 16 // counts[name]
        parts[name] = ByteSize(min(part, most) if most else part)
    return parts


def _text(size_bytes: int) -> str:
    return ByteSize(size_bytes).human_readable()
