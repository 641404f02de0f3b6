"""Strings as elements of torch tensors, which have no such type.

An element is the number of a string in a table of this process, so that tensors of strings are
cut, joined and compared like others; 0 is the empty string. Numbers stay valid, and the table
never shrinks: it serves the importer and the first runs of a plan, not requests.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from braid.core.tensor import BYTES
from braid.engine.ops.dtypes import torch_dtype

_texts: list[str] = [""]
_numbers: dict[str, int] = {"": 0}
_lock = threading.Lock()


def is_strings(tensor: Tensor) -> bool:
    return tensor.dtype == torch_dtype(BYTES)


def strings_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    flat = array.reshape(-1).tolist()
    with _lock:
        for text in flat:
            if text not in _numbers:
                _numbers[text] = len(_texts)
                _texts.append(text)
    numbers = np.fromiter((_numbers[text] for text in flat), np.int64, len(flat))
    return torch.from_numpy(numbers.reshape(array.shape)).view(torch_dtype(BYTES))


def strings_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    numbers = tensor.detach().cpu().contiguous().view(torch.int64).numpy()
    return text_array([_texts[number] for number in numbers.reshape(-1)], numbers.shape)


def text_array(texts: list[str], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an array of Python strings, which is how ONNX Runtime takes any text."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)
