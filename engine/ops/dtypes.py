"""Element types: Open Inference Protocol names, the same as in graph attributes, and torch's.

Torch has no strings. An element that stands for one is the number of a string in a table of this
process, so that tensors of strings are cut, joined and compared like others; 0 is the empty string.
Numbers stay valid, and the table never shrinks: it serves the importer and the first runs of a
plan, not requests.
"""

import threading
from collections.abc import Container, Mapping

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from braid.core.errors import InvalidArtefact
from braid.core.tensor import ARRAY_NAMES, BYTES, TensorType
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.threads import on_one_thread

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    **{name: getattr(torch, in_torch) for name, in_torch in ARRAY_NAMES.items()},
    BYTES: torch.complex64,  # 8 bytes that name a string (strings.py, shared_memory.py)
}
DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of an OIP name; ``InvalidArtefact`` if there is none."""
    try:
        return TORCH_DTYPES[name]
    except KeyError:
        raise InvalidArtefact(f"unknown dtype {name!r}; known: {', '.join(TORCH_DTYPES)}") from None


def spec_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def array_of(tensor: Tensor | Array) -> Array:
    """Return a tensor's memory as an array, in its strides; BF16 in the type of ml_dtypes."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def tensor_of(array: Array | Tensor) -> Tensor:
    """A tensor on the memory of an array; ``TypeError`` if torch has not its type.

    ONNX Runtime's UINT64 is C's unsigned long long, which torch refuses although numpy calls it
    equal to the uint64 that torch takes.
    """
    if isinstance(array, Tensor):
        return array
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array.view(np.uint64) if array.dtype == np.uint64 else array)


def arrays_of(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Copies those of a GPU."""
    return {name: array_of(tensor.cpu()) for name, tensor in tensors.items()}


def tensors_of(arrays: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
    return {name: tensor_of(array) for name, array in arrays.items()}


def copy_into(outputs: Arrays, results: Arrays) -> Arrays:
    """Copy by the thread's team, or by the thread alone if it is little; returns ``outputs``."""
    with on_one_thread(sum(array.nbytes for array in results.values())):
        for name, array in results.items():
            tensor_of(outputs[name]).copy_(tensor_of(array))
    return outputs


def separated(tensors: dict[str, Tensor], wanted: Container[str]) -> dict[str, Tensor]:
    """The tensors that are wanted, each dense and with memory of its own: some were views.

    The given mapping is emptied tensor by tensor, so that the peak is one tensor above the sum.
    """
    kept: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name in list(tensors):
        tensor = tensors.pop(name)
        if name not in wanted:
            continue
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        kept[name] = tensor
    return kept


_texts: list[str] = [""]
_numbers: dict[str, int] = {"": 0}
_lock = threading.Lock()


def is_strings(tensor: Tensor) -> bool:
    return tensor.dtype == torch_dtype(BYTES)


def strings_tensor(array: Array) -> Tensor:
    flat = array.reshape(-1).tolist()
    with _lock:
        for text in flat:
            if text not in _numbers:
                _numbers[text] = len(_texts)
                _texts.append(text)
    numbers = np.fromiter((_numbers[text] for text in flat), np.int64, len(flat))
    return torch.from_numpy(numbers.reshape(array.shape)).view(torch_dtype(BYTES))


def strings_array(tensor: Tensor) -> Array:
    numbers = tensor.detach().cpu().contiguous().view(torch.int64).numpy()
    return text_array([_texts[number] for number in numbers.reshape(-1)], numbers.shape)


def text_array(texts: list[str], shape: tuple[int, ...]) -> Array:
    """Return an array of Python strings, which is how ONNX Runtime takes any text."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)
