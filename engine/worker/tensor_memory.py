"""Memory of tensors, whatever they share of it and wherever it lies."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def storage_of(tensor: Tensor) -> int:
    """Return what tells a tensor's memory from that of others."""
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()  # that is opaque


def storage_bytes(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the bytes that tensors take by type of device, memory that they share counted once."""
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        if tensor.is_mkldnn:
            sizes[tensor.device.type, storage_of(tensor)] = tensor.numel() * tensor.element_size()
        elif tensor.numel():
            sizes[tensor.device.type, storage_of(tensor)] = tensor.untyped_storage().nbytes()
    total: dict[str, int] = {}
    for (device, _), size in sizes.items():
        total[device] = total.get(device, 0) + size
    return total
