"""Memory of values, whatever they share of it and wherever it lies."""

from collections.abc import Iterable

import numpy as np

from braid.engine.ops.dtypes import array_of
from braid.engine.program.kernel import Value
from braid.engine.runtime.arrays import address_of


def memory_of(value: Value) -> tuple[str, int, int]:
    """Type of the device, and where there a value's memory begins and ends."""
    if isinstance(value, np.ndarray) or value.is_cpu:
        array = array_of(value)
        steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        start = address_of(array)
        return "cpu", start, start + (array.itemsize + sum(steps) if array.size else 0)
    storage = value.untyped_storage()
    start = storage.data_ptr()
    return value.device.type, start, start + storage.nbytes()


def memory_bytes(values: Iterable[Value]) -> dict[str, int]:
    """Return the bytes that values take by type of device, memory that they share counted once."""
    total: dict[str, int] = {}
    counted = "", 0  # device, and the end of what is counted there
    for device, start, end in sorted({memory_of(value) for value in values}):
        first = max(start, counted[1]) if device == counted[0] else start
        if end > first:
            total[device] = total.get(device, 0) + end - first
            counted = device, end
    return total
