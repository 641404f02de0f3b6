"""Tensors on the memory of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from braid.engine.ops.dtypes import tensor_of


@pytest.mark.parametrize("dtype", [np.uint64, np.ulonglong, np.ulong, np.longlong, np.float32])
def test_every_type_of_c_is_taken_as_it_is(dtype: type) -> None:
    array: np.ndarray[Any, Any] = np.array([0, 1, 2**31], dtype)

    tensor = tensor_of(array)

    assert tensor.tolist() == array.tolist()
    array[1] = 7
    assert tensor[1] == 7, "the same memory"
    assert tensor.element_size() == array.itemsize
    assert tensor.is_floating_point() == (dtype is np.float32)


def test_the_largest_unsigned_integer_survives() -> None:
    tensor = tensor_of(np.array([2**64 - 1], np.ulonglong))

    assert tensor.dtype == torch.uint64
    assert tensor.tolist() == [2**64 - 1]
