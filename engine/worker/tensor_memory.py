"""Memory of tensors, whatever they share of it and wherever it lies."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def storage_bytes(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the bytes that tensors take by type of device, memory that they share counted once."""
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        if tensor.is_mkldnn:  # opaque: it has no storage
            sizes[tensor.device.type, id(tensor)] = tensor.numel() * tensor.element_size()
        elif tensor.numel():
            storage = tensor.untyped_storage()
            sizes[tensor.device.type, storage.data_ptr()] = storage.nbytes()
    total: dict[str, int] = {}
    for (device, _), size in sizes.items():
        total[device] = total.get(device, 0) + size
    return total
