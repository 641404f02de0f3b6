"""Arrays of callers as numpy's, and outputs as the kind of array that came: numpy's or torch's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from braid.core.errors import InvalidTensor
from braid.core.inputs import GivenTensor
from braid.core.tensor import BYTES
from braid.engine.ops.dtypes import array_of, tensor_of, text_array
from braid.engine.runtime.arrays import Array, Arrays, dtype_of

Given: TypeAlias = "Array | Tensor"
Inputs: TypeAlias = "Given | Mapping[str, Given]"

_ARRAYS = (np.ndarray, Tensor)


@dataclass(slots=True)  # not frozen: that takes longer to make
class GivenInputs:
    """Inputs of one call, by name; strings are arrays of ``str``."""

    arrays: Arrays
    are_numpy: bool  # so are the outputs, then

    @property
    def looks(self) -> tuple[Any, ...]:
        """All that a plan depends on, but for the content of static inputs."""
        return tuple([(name, array.dtype, array.shape) for name, array in self.arrays.items()])

    def unchecked(self) -> Sequence[GivenTensor]:
        return [
            GivenTensor(name, _dtype(name, array), array.shape, _content(array))
            for name, array in self.arrays.items()
        ]

    def like_given(self, array: Array) -> Given:
        """An output as the kind of array that came; strings are numpy's."""
        return array if self.are_numpy or array.dtype == object else tensor_of(array)


def given_inputs(given: Inputs, names: Sequence[str]) -> GivenInputs:
    """Name the inputs of a call, uncopied where their elements lie in order.

    Raises InvalidTensor: one array for several inputs, or something that is no array.
    """
    if isinstance(given, _ARRAYS) or not isinstance(given, Mapping):
        if len(names) != 1:
            raise InvalidTensor(f"give a dict of arrays; the inputs are {', '.join(names)}")
        (name,) = names
        return GivenInputs({name: _array(name, given)}, isinstance(given, np.ndarray))
    arrays = {str(name): _array(name, array) for name, array in given.items()}
    return GivenInputs(arrays, not any(isinstance(array, Tensor) for array in given.values()))


def _array(name: str, given: Given) -> Array:
    if isinstance(given, np.ndarray):
        if given.dtype.kind in "OUS":
            return _texts(name, given)
        is_usable = given.flags.c_contiguous and given.flags.writeable
        return given if is_usable else given.copy(order="C")
    if isinstance(given, Tensor):
        if not (given.is_cpu and not given.requires_grad and given.is_contiguous()):
            given = given.detach().cpu().contiguous()
        try:
            return array_of(given)
        except TypeError:
            raise InvalidTensor(f"input {name!r}: no model takes {given.dtype} tensors") from None
    kind = type(given).__name__
    raise InvalidTensor(f"input {name!r} is a {kind}; give a numpy array or a torch tensor")


def _texts(name: str, array: Array) -> Array:
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


def _dtype(name: str, array: Array) -> str:
    if array.dtype == object:
        return BYTES
    try:
        return dtype_of(array)
    except KeyError:
        raise InvalidTensor(f"input {name!r}: no model takes {array.dtype} arrays") from None


def _content(array: Array) -> memoryview:
    if array.dtype == object or not array.size:  # of strings nobody looks at it
        return memoryview(b"")
    return array.reshape(-1).view(np.uint8).data


def padded(array: Array, first: int, rows: int, size: int) -> Array:
    """Rows ``first`` to ``first + rows`` of an array, and rows up to ``size`` to fill a batch.

    They are zeros, of integers the last row once more, if there is one: zero may be a divisor that
    nobody gave.
    """
    part = array[first : first + rows]
    if rows == size:
        return part
    filled = np.zeros((size, *array.shape[1:]), array.dtype)
    filled[:rows] = part
    if rows and array.dtype.kind in "iu":
        filled[rows:] = part[-1]
    return filled


def joined(parts: Sequence[Array], axis: int | None) -> Array:
    """One output of several batches, along its batch axis; None: it is the same in each."""
    return parts[0] if axis is None or len(parts) == 1 else np.concatenate(list(parts), axis)
