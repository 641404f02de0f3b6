"""Tensors and arrays over one memory."""

from __future__ import annotations

import pytest
import torch

from braid.engine.ops.dtypes import TORCH_DTYPES, array_of, tensor_of
from braid.engine.runtime.arrays import dtype_of


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_an_array_lies_in_the_memory_and_order_of_its_tensor(name: str) -> None:
    tensor = torch.empty(2, 3, 4, 5, dtype=TORCH_DTYPES[name], memory_format=torch.channels_last)[
        :, 1:
    ]

    array = array_of(tensor)

    assert dtype_of(array) == name
    same = tensor_of(array)
    assert same.dtype == tensor.dtype
    assert (same.data_ptr(), same.stride()) == (tensor.data_ptr(), tensor.stride())
