"""Arrays of callers as tensors, and outputs as the kind of array that came: numpy's or torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from braid.core.errors import InvalidTensor
from braid.core.inputs import GivenTensor
from braid.core.tensor import BYTES
from braid.engine.ops.dtypes import DTYPE_NAMES, tensor_of, text_array

Array: TypeAlias = "np.ndarray[Any, Any] | Tensor"
Inputs: TypeAlias = "Array | Mapping[str, Array]"

_ARRAYS = (np.ndarray, Tensor)


@dataclass(slots=True)  # not frozen: that takes longer to make
class GivenInputs:
    """Inputs of one call, by name; strings are arrays of ``str``."""

    tensors: Mapping[str, Any]
    are_numpy: bool  # so are the outputs, then

    @property
    def looks(self) -> tuple[Any, ...]:
        """All that a plan depends on, but for the content of static inputs."""
        return tuple([(name, tensor.dtype, tensor.shape) for name, tensor in self.tensors.items()])

    def unchecked(self) -> Sequence[GivenTensor]:
        return [
            GivenTensor(name, _dtype(name, tensor), tuple(tensor.shape), _content(tensor))
            for name, tensor in self.tensors.items()
        ]


def given_inputs(given: Inputs, names: Sequence[str]) -> GivenInputs:
    """Name the inputs of a call, uncopied where their elements lie in order.

    Raises InvalidTensor: one array for several inputs, or something that is no array.
    """
    if isinstance(given, _ARRAYS) or not isinstance(given, Mapping):
        if len(names) != 1:
            raise InvalidTensor(f"give a dict of arrays; the inputs are {', '.join(names)}")
        (name,) = names
        return GivenInputs({name: _tensor(name, given)}, isinstance(given, np.ndarray))
    tensors = {str(name): _tensor(name, array) for name, array in given.items()}
    return GivenInputs(tensors, not any(isinstance(array, Tensor) for array in given.values()))


def _tensor(name: str, array: Array) -> Array:
    if isinstance(array, np.ndarray):
        if array.dtype.kind in "OUS":
            return _texts(name, array)
        if not array.flags.c_contiguous or not array.flags.writeable:
            array = array.copy(order="C")
        try:
            return tensor_of(array)
        except TypeError:
            raise InvalidTensor(f"input {name!r}: no model takes {array.dtype} arrays") from None
    if isinstance(array, Tensor):
        if array.is_cpu and not array.requires_grad and array.is_contiguous():
            return array
        return array.detach().cpu().contiguous()
    kind = type(array).__name__
    raise InvalidTensor(f"input {name!r} is a {kind}; give a numpy array or a torch tensor")


def _texts(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Strings of an array, bytes as UTF-8. Raises InvalidTensor: an element is neither."""
    texts = array.reshape(-1).tolist()
    for place, text in enumerate(texts):
        if isinstance(text, bytes):
            try:
                texts[place] = text.decode()
            except UnicodeDecodeError:
                raise InvalidTensor(f"input {name!r} has no UTF-8 in element {place}") from None
        elif not isinstance(text, str):
            kind = type(text).__name__
            raise InvalidTensor(f"input {name!r} has a {kind} in element {place}, not a string")
    return text_array(texts, array.shape)


def _dtype(name: str, tensor: Array) -> str:
    if isinstance(tensor, np.ndarray):
        return BYTES
    dtype = DTYPE_NAMES.get(tensor.dtype)
    if dtype is None:
        raise InvalidTensor(f"input {name!r}: no model takes {tensor.dtype} tensors")
    return dtype


def _content(tensor: Array) -> memoryview:
    if isinstance(tensor, np.ndarray) or not tensor.numel():  # of strings nobody looks at it
        return memoryview(b"")
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def padded(tensor: Tensor, first: int, rows: int, size: int) -> Tensor:
    """Rows ``first`` to ``first + rows`` of a tensor, and rows up to ``size`` to fill a batch.

    They are zeros, of integers the last row once more, if there is one: zero may be a divisor that
    nobody gave.
    """
    if rows == size == tensor.shape[0]:
        return tensor
    part = tensor.narrow(0, first, rows)
    if rows == size:
        return part
    filled = torch.zeros((size, *tensor.shape[1:]), dtype=tensor.dtype)
    filled[:rows] = part
    if rows and not (tensor.is_floating_point() or tensor.dtype == torch.bool):
        filled[rows:] = part[-1]
    return filled


def joined(parts: Sequence[Tensor], axis: int | None) -> Tensor:
    """One output of several batches, along its batch axis; None: it is the same in each."""
    return parts[0] if axis is None or len(parts) == 1 else torch.cat(list(parts), axis)
