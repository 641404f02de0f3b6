"""Arithmetic of unsigned integers, which torch lacks, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from braid.engine.ops.kinds import op

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
