"""Element types: as they come, unsigned ones against numpy, and on meta tensors."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from braid.engine.ops.dtypes import TORCH_DTYPES, array_of, tensor_of
from braid.engine.ops.kinds import op
from braid.engine.runtime.arrays import dtype_of


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


_KINDS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "remainder": np.remainder,
    "bitwise_and": np.bitwise_and,
    "bitwise_xor": np.bitwise_xor,
    "lt": np.less,
    "ge": np.greater_equal,
    "eq": np.equal,
}


def computed(kind: str, a: Any, b: Any, **attributes: bool) -> Any:
    result = op(kind).run(torch.from_numpy(a), torch.from_numpy(b), **attributes)
    assert isinstance(result, torch.Tensor)
    return result.numpy()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@given(data=st.data())
def test_agrees_with_numpy(dtype: type[np.unsignedinteger], data: st.DataObject) -> None:
    a = data.draw(arrays.arrays(dtype, 4))
    b = np.maximum(data.draw(arrays.arrays(dtype, 4)), dtype(1))
    places = np.minimum(b, dtype(a.itemsize * 8 - 1))

    with np.errstate(over="ignore"):
        for name, expected in _KINDS.items():
            found = computed(f"aten.{name}", a, b)
            np.testing.assert_array_equal(found, expected(a, b), err_msg=name)
        for name, expected in (("right", np.right_shift), ("left", np.left_shift)):
            found = computed(f"aten.bitwise_{name}_shift", a, places)
            np.testing.assert_array_equal(found, expected(a, places), err_msg=name)
    np.testing.assert_array_equal(computed("aten.div", a, b, truncate=True), a // b)


SHAPES = """
import sys, torch
from braid.engine.ops.meta_kernels import leave_compiler_out
leave_compiler_out()
x = torch.empty(2, 3, device="meta")
y = torch.empty(3, dtype=torch.float64, device="meta")
for found in (x + y, (x * 2).relu(), torch.nn.functional.gelu(x - 1), torch.where(x > 0, x, y)):
    assert tuple(found.shape) == (2, 3), found
assert (x + y).dtype is torch.float64
print("torch._dynamo" in sys.modules)
"""


def test_elementwise_operators_on_meta_tensors_do_not_load_the_compiler() -> None:
    ran = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "False"
