"""Memory that a loaded model takes in this worker, counted over its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from braid.engine.link.messages import ModelMemory
from braid.engine.worker.models import LoadedModel, ReadyExecutable


def model_memory(
    model: LoadedModel, latest: ReadyExecutable, gpu_reserved: int | None
) -> ModelMemory:
    """Return the memory of a model whose ``latest`` executable was just prepared."""
    sizes = storage_bytes(_tensors(model))
    gpu_weights = sizes.pop("cuda", 0)
    activations = latest.prepared.activation_bytes or 0
    return ModelMemory(sum(sizes.values()), gpu_weights, activations, gpu_reserved)


def _tensors(model: LoadedModel) -> Iterator[Tensor]:
    yield from model.weights.values()
    yield from model.packed.tensors()
    for program in model.programs.values():
        yield from program.constants().values()


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
